"""What all messages between the daemon's processes have in common; see `workers.messages`."""

from __future__ import annotations

import msgspec

#: Both sides must say the same; raised with every change of a message.
VERSION = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages."""


class Endpoint(msgspec.Struct, frozen=True):
    """An address of a broker under a listener's name. `protocol`: config.listeners.SecurityProtocol."""

    listener: str
    host: str
    port: int
    protocol: int = 0
