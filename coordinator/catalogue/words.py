"""Changes of the catalogue in words, for the log: what became of topics, settings, users, permissions, quotas, features.

Kafka's controller logs the same records as it replays them. Nothing secret is told (ConfigurationControlManager hides
sensitive values as well).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from compactd.config.listener_settings import shown
from compactd.storage.metadata.image import MetadataImage
from compactd.storage.metadata.record_types import MetadataRecord, RecordType
from compactd.workers.acl_messages import Operation, PatternType, Permission, Resource

_RESOURCES = {2: "topic", 4: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def tell(records: Sequence[MetadataRecord], before: MetadataImage) -> Iterator[str]:
    """One clause for each change that somebody asked for, in order. `before`: the image that the records change."""
    partitions = Counter(record.data["topicId"] for record in records if record.type is RecordType.PARTITION)
    for record in records:
        data = record.data
        match record.type:
            case RecordType.TOPIC:
                count = partitions.pop(data["topicId"], 0)
                yield f"topic {data['name']} was created: {_partitions(count)}, id {data['topicId']}"
            case RecordType.PARTITION if count := partitions.pop(data["topicId"], 0):
                yield f"topic {before.names[data['topicId']]} was given {_partitions(count)} more"
            case RecordType.REMOVE_TOPIC:
                yield f"topic {before.names[data['topicId']]} was deleted, id {data['topicId']}"
            case RecordType.CONFIG:
                yield _config(data)
            case RecordType.USER_SCRAM_CREDENTIAL:
                known = (data["name"], data["mechanism"]) in before.scram
                change = "has a new password for" if known else "may log in with"
                yield f"user {data['name']} {change} {_MECHANISMS.get(data['mechanism'], 'SCRAM')}"
            case RecordType.REMOVE_USER_SCRAM_CREDENTIAL:
                yield f"user {data['name']} may no longer log in with {_MECHANISMS.get(data['mechanism'], 'SCRAM')}"
            case RecordType.ACCESS_CONTROL_ENTRY:
                yield f"ACL added: {_acl(data)}"
            case RecordType.REMOVE_ACCESS_CONTROL_ENTRY:
                yield f"ACL removed: {_acl(before.acls[data['id']])}"
            case RecordType.CLIENT_QUOTA:
                yield _quota(data)
            case RecordType.FEATURE_LEVEL:
                yield f"feature {data['name']} is at level {data['featureLevel']} now"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def _config(data: Mapping[str, Any]) -> str:
    kind = _RESOURCES.get(data["resourceType"], "resource")
    owner = f"{kind} {data['resourceName']}" if data["resourceName"] else f"every {kind}"
    name, value = data["name"], data["value"]
    return f"{owner}: {name} is " + ("no longer set" if value is None else f"set to {shown(name, value)!r}")


def _acl(data: Mapping[str, Any]) -> str:
    pattern = f"{_name(PatternType, data['patternType'])} {_name(Resource, data['resourceType'])}"
    allowed = f"{_name(Permission, data['permissionType'])} {_name(Operation, data['operation'])}"
    return f"{data['principal']} {allowed} on {pattern} {data['resourceName']} from {data['host']}"


def _name(kind: type[IntEnum], number: int) -> str:
    """Of a record that a newer Kafka wrote, the number."""
    return kind(number).name if number in {each.value for each in kind} else str(number)


def _quota(data: Mapping[str, Any]) -> str:
    entity = ", ".join(f"{part['entityType']} {part['entityName'] or '<default>'}" for part in data["entity"])
    return f"quota of {entity}: {data['key']} is " + ("no longer set" if data["remove"] else f"{data['value']:g}")
