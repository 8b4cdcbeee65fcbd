"""Requests that set quotas and ask for them, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.workers.broker.harness import RawClient

DESCRIBE, ALTER = 48, 49

#: Type to name, None for the default entity.
Entity = Mapping[str, str | None]


def alter_body(*changes: tuple[Entity, Mapping[str, float | None]], validate_only: bool = False) -> dict[str, Any]:
    """AlterClientQuotas; a value of None removes."""
    return {
        "entries": [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
                "ops": [
                    {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
                    for key, value in values.items()
                ],
            }
            for entity, values in changes
        ],
        "validate_only": validate_only,
    }


def describe_body(*components: tuple[str, int, str | None], strict: bool = False) -> dict[str, Any]:
    """DescribeClientQuotas."""
    rows = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    return {"components": rows, "strict": strict}


def limit(client: RawClient, entity: Entity, **values: float | None) -> None:
    """Sets quotas of one entity."""
    (entry,) = client.ask(ALTER, 1, alter_body((entity, values))).entries
    assert int(entry.error_code) == 0, entry.error_message


def described(client: RawClient, *components: tuple[str, int, str | None], strict: bool = False) -> dict[Any, Any]:
    """Quotas by entity."""
    answer = client.ask(DESCRIBE, 1, describe_body(*components, strict=strict))
    assert int(answer.error_code) == 0, answer.error_message
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }
