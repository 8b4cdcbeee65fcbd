"""Which quota counts for which client (KIP-13, 124, 257, 599, 612; facts: kafka-protocol 17)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from compactd.workers.catalogue_update import ClientQuota

USER, CLIENT_ID, IP = "user", "client-id", "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"


class _Absent(Enum):
    """No entity of that type; None is the default entity, and "" the client id of clients that have none."""

    ABSENT = 0


_ABSENT = _Absent.ABSENT
_Key = tuple[str | _Absent | None, str | _Absent | None]


class Limit(NamedTuple):
    """A quota, and those who share it: (user, client id), "" for all of them."""

    value: float
    shared_by: tuple[str, str]


class ClientLimits:
    """The limits of one kind ("producer_byte_rate", ...) by user and client id."""

    def __init__(self, quotas: Iterable[ClientQuota], key: str) -> None:
        self._limits: dict[_Key, float] = {}
        for quota in quotas:
            entity = dict(quota.entity)
            if key in quota.values and IP not in entity:
                self._limits[entity.get(USER, _ABSENT), entity.get(CLIENT_ID, _ABSENT)] = quota.values[key]

    def __bool__(self) -> bool:
        """Whether anybody has a limit."""
        return bool(self._limits)

    def of(self, user: str, client_id: str) -> Limit | None:
        """The most specific one; None: there is none for this client."""
        both, of_user, of_client = (user, client_id), (user, ""), ("", client_id)
        order: tuple[tuple[_Key, tuple[str, str]], ...] = (
            ((user, client_id), both),
            ((user, None), both),
            ((user, _ABSENT), of_user),
            ((None, client_id), both),
            ((None, None), both),
            ((None, _ABSENT), of_user),
            ((_ABSENT, client_id), of_client),
            ((_ABSENT, None), of_client),
        )
        for key, shared_by in order:
            value = self._limits.get(key)
            if value is not None:
                return Limit(value, shared_by)
        return None
