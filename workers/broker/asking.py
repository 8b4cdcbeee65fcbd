"""Asks the catalogue for a change that a client wants, and makes errors of what goes wrong on the way."""

from __future__ import annotations

import logging
from typing import NamedTuple, TypeVar

import msgspec

from compactd.config.errors import CompactdError
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")


class Unanswered(NamedTuple):
    """The catalogue gave no results: what the client is told instead."""

    error: ErrorCode
    message: str


async def ask_catalogue(
    context: Context, operation: str, arguments: msgspec.Struct, results: type[_T]
) -> _T | Unanswered:
    """As `CatalogueClient.change`, which see."""
    try:
        return await context.catalogue.change(operation, arguments, results)
    except TimeoutError:
        return Unanswered(ErrorCode.REQUEST_TIMED_OUT, "The catalogue did not answer in time.")
    except CompactdError as refusal:
        _LOGGER.warning("%s: %s", operation, refusal)
        return Unanswered(ErrorCode.UNKNOWN_SERVER_ERROR, str(refusal))
