"""How clients of each listener prove who they are, as the settings now say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactd.config.listener_security import ListenerSecurity, securities
from compactd.config.settings import DaemonConfig

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context


class Listeners:
    """`context.part(Listeners)`. What changes counts for those who connect from then on."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config: DaemonConfig | None = None
        self._known: dict[str, ListenerSecurity] = {}

    def of(self, listener: str) -> ListenerSecurity:
        if self._config is not self._context.config:
            self._config = self._context.config
            self._known = securities(self._config)
        return self._known[listener]
