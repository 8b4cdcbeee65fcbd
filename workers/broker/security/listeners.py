"""How clients of each listener prove who they are, as the settings now say."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from compactd.config.errors import WorkerBootError
from compactd.config.listener_security import ListenerSecurity, securities
from compactd.config.settings import DaemonConfig
from compactd.workers.broker.security.tls import Tls, TlsError

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context

_LOGGER = logging.getLogger(__name__)


class Listeners:
    """`context.part(Listeners)`. What changes counts for those who connect from then on."""

    def __init__(self, context: Context) -> None:
        """WorkerBootError: keys or certificates of a listener cannot be used."""
        self._context = context
        self._config = context.config
        self._known = securities(self._config)
        self._tls: dict[str, Tls] = {}
        for name, security in self._known.items():
            if security.tls is not None:
                try:
                    self._tls[name] = Tls(security.listener, security.tls)
                except TlsError as error:
                    raise WorkerBootError(detail=f"listener {name}: {error}") from error

    def of(self, listener: str) -> ListenerSecurity:
        if self._config is not self._context.config:
            self._take(self._context.config)
        return self._known[listener]

    def tls(self, listener: str) -> Tls | None:
        """None: the listener is not encrypted."""
        return self._tls.get(listener)

    def _take(self, config: DaemonConfig) -> None:
        """New settings. Certificates that cannot be used leave the old ones."""
        self._config = config
        self._known = securities(config)
        for name, security in self._known.items():
            known = self._tls.get(name)
            if security.tls is not None and known is not None and known.config != security.tls:
                try:
                    self._tls[name] = Tls(security.listener, security.tls)
                except TlsError as error:
                    _LOGGER.error("%s goes on with its old certificates: %s", name, error)
