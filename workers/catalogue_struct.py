"""The base of what the catalogue is asked and what it answers: by itself, so that every subject can have a module of its own."""

from __future__ import annotations

import msgspec


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of arguments and results of the catalogue's operations."""
