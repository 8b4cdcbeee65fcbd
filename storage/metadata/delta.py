"""Changes on top of an image, record by record, by Kafka's replay rules (facts A9, A10).

A record that contradicts what came before raises MalformedError: Kafka does not start on such a log, so it must not be
written, and one that is read must not be served. Nothing is copied that no record touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from compactd.storage.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
    PartitionImage,
    Resource,
    TopicImage,
)
from compactd.storage.metadata.record_types import KRAFT_VERSION, RecordType
from compactd.storage.records.varint import MalformedError

_K = TypeVar("_K")
_V = TypeVar("_V")

_UNCHANGED_LEADER = -2
_MAPS = ("features", "topics", "names", "configs", "brokers", "controllers", "quotas", "acls", "scram", "tokens")


class MetadataDelta:
    """Collects records; `apply` gives the next image. One delta serves one batch or a whole replay."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        #: Names of topics that were made or changed, their settings included, and still exist.
        self.changed_topics: set[str] = set()
        #: Id to name of topics that are gone.
        self.deleted_topics: dict[str, str] = {}
        self.changed_configs: set[Resource] = set()
        self._maps: dict[str, dict[Any, Any]] = {}
        self._values: dict[str, Any] = {}
        #: Partition maps and settings that are this delta's own copies, by identity of their key.
        self._partitions: dict[str, dict[int, PartitionImage]] = {}
        self._configs: set[Resource] = set()

    def replay(self, api_key: int, data: Mapping[str, Any]) -> None:
        """Applies one record. Raises MalformedError."""
        apply = _APPLY.get(api_key)
        if apply is not None:
            apply(self, data)

    def control(self, name: str, data: Mapping[str, Any]) -> None:
        """Applies a control record of the raft log or a snapshot, by its name in CONTROL_RECORDS."""
        if name == "KRAFT_VERSION":
            self._values["kraft_version"] = data["kRaftVersion"]
        elif name == "KRAFT_VOTERS":
            self._values["voters"] = tuple(data["voters"])

    def apply(self, offset: int, epoch: int, timestamp: int) -> MetadataImage:
        """The image that the changes lead to, standing at `offset`."""
        if self._partitions:
            topics = self._own("topics")
            for name, partitions in self._partitions.items():
                topics[name] = replace(topics[name], partitions=partitions)
            self._partitions = {}
        changed: dict[str, Any] = {**self._maps, **self._values}
        image = replace(self.image, offset=offset, epoch=epoch, timestamp=timestamp, **changed)
        self.image, self._maps, self._values = image, {}, {}
        self._configs = set()
        return image

    # ---- inside

    def _own(self, name: str) -> dict[Any, Any]:
        found = self._maps.get(name)
        if found is None:
            found = self._maps[name] = dict(getattr(self.image, name))
        return found

    def _get(self, name: str) -> Mapping[Any, Any]:
        own = self._maps.get(name)
        found: Mapping[Any, Any] = getattr(self.image, name) if own is None else own
        return found

    def _topic(self, topic_id: str) -> str:
        name: str | None = self._get("names").get(topic_id)
        if name is None:
            raise MalformedError(f"topic id {topic_id} is unknown")
        return name

    def _own_partitions(self, name: str) -> dict[int, PartitionImage]:
        found = self._partitions.get(name)
        if found is None:
            found = self._partitions[name] = dict(self._get("topics")[name].partitions)
        self.changed_topics.add(name)
        return found

    def _add_topic(self, data: Mapping[str, Any]) -> None:
        name, topic_id = data["name"], data["topicId"]
        if name in self._get("topics"):
            raise MalformedError(f"topic {name} exists already")
        if topic_id in self._get("names"):
            raise MalformedError(f"topic id {topic_id} of {name} is already that of {self._get('names')[topic_id]}")
        self._own("topics")[name] = TopicImage(name, topic_id, {})
        self._own("names")[topic_id] = name
        self.changed_topics.add(name)

    def _remove_topic(self, data: Mapping[str, Any]) -> None:
        name = self._topic(data["topicId"])
        del self._own("topics")[name], self._own("names")[data["topicId"]]
        self._partitions.pop(name, None)
        if (TOPIC_RESOURCE, name) in self._get("configs"):
            del self._own("configs")[TOPIC_RESOURCE, name]
            self._configs.discard((TOPIC_RESOURCE, name))
        self.changed_topics.discard(name)
        self.deleted_topics[data["topicId"]] = name

    def _set_partition(self, data: Mapping[str, Any]) -> None:
        name = self._topic(data["topicId"])
        directories, replicas = tuple(data.get("directories") or ()), tuple(data["replicas"])
        _check_directories(directories, replicas)
        self._own_partitions(name)[data["partitionId"]] = PartitionImage(
            replicas=replicas,
            isr=tuple(data["isr"]),
            leader=data["leader"],
            leader_epoch=data["leaderEpoch"],
            partition_epoch=data["partitionEpoch"],
            directories=directories,
            removing=tuple(data["removingReplicas"]),
            adding=tuple(data["addingReplicas"]),
            recovery_state=data.get("leaderRecoveryState", 0),
            elr=tuple(data.get("eligibleLeaderReplicas") or ()),
            last_known_elr=tuple(data.get("lastKnownElr") or ()),
        )

    def _change_partition(self, data: Mapping[str, Any]) -> None:
        name, number = self._topic(data["topicId"]), data["partitionId"]
        before = self._own_partitions(name).get(number)
        if before is None:
            raise MalformedError(f"topic {name} has no partition {number}")
        leader = data.get("leader", _UNCHANGED_LEADER)
        recovery = data.get("leaderRecoveryState", -1)
        given = {
            ours: tuple(data[theirs])
            for ours, theirs in _CHANGED.items()
            if data.get(theirs) is not None
        }  # fmt: skip
        after = replace(
            before,
            leader=before.leader if leader == _UNCHANGED_LEADER else leader,
            # Even the same leader, named again, begins a new epoch.
            leader_epoch=before.leader_epoch + (leader != _UNCHANGED_LEADER),
            partition_epoch=before.partition_epoch + 1,
            recovery_state=before.recovery_state if recovery == -1 else recovery,
            **given,
        )
        _check_directories(after.directories, after.replicas)
        self._own_partitions(name)[number] = after

    def _clear_elr(self, data: Mapping[str, Any]) -> None:
        name, topics = data["topicName"], self._get("topics")
        if name and name not in topics:
            raise MalformedError(f"topic {name} is unknown")
        for topic in (name,) if name else tuple(topics):
            partitions = self._partitions.get(topic) or topics[topic].partitions
            for number, state in list(partitions.items()):
                if state.elr or state.last_known_elr:
                    cleared = replace(state, elr=(), last_known_elr=(), partition_epoch=state.partition_epoch + 1)
                    self._own_partitions(topic)[number] = cleared

    def _config(self, data: Mapping[str, Any]) -> None:
        kind, resource = data["resourceType"], data["resourceName"]
        if kind == BROKER_RESOURCE and resource and not _is_integer(resource):
            raise MalformedError(f"a setting of broker {resource!r}, which is no node id")
        key = (kind, resource)
        configs = self._own("configs")
        if key not in self._configs:
            configs[key] = dict(configs.get(key, {}))
            self._configs.add(key)
        if data["value"] is None:
            configs[key].pop(data["name"], None)
            if not configs[key]:
                del configs[key]
                self._configs.discard(key)
        else:
            configs[key][data["name"]] = data["value"]
        self.changed_configs.add(key)
        if kind == TOPIC_RESOURCE and resource in self._get("topics"):
            self.changed_topics.add(resource)

    def _feature(self, data: Mapping[str, Any]) -> None:
        if data["name"] == KRAFT_VERSION:
            return
        if data["featureLevel"] == 0:
            self._own("features").pop(data["name"], None)
        else:
            self._own("features")[data["name"]] = data["featureLevel"]

    def _register_broker(self, data: Mapping[str, Any]) -> None:
        self._own("brokers")[data["brokerId"]] = dict(data)

    def _broker(self, node: int, epoch: int) -> dict[str, Any]:
        found = self._get("brokers").get(node)
        if found is None:
            raise MalformedError(f"broker {node} is not registered")
        if found["brokerEpoch"] != epoch:
            raise MalformedError(f"broker {node} is registered with epoch {found['brokerEpoch']}, not {epoch}")
        registration = dict(found)
        self._own("brokers")[node] = registration
        return registration

    def _unregister_broker(self, data: Mapping[str, Any]) -> None:
        self._broker(data["brokerId"], data["brokerEpoch"])
        del self._own("brokers")[data["brokerId"]]

    def _fence(self, data: Mapping[str, Any], fenced: bool) -> None:
        self._broker(data["id"], data["epoch"])["fenced"] = fenced

    def _change_broker(self, data: Mapping[str, Any]) -> None:
        registration = self._broker(data["brokerId"], data["brokerEpoch"])
        if data.get("fenced"):
            registration["fenced"] = data["fenced"] > 0
        if data.get("inControlledShutdown"):
            registration["inControlledShutdown"] = data["inControlledShutdown"] > 0
        if data.get("logDirs"):
            registration["logDirs"] = list(data["logDirs"])
        if data.get("cordonedLogDirs") is not None:
            registration["cordonedLogDirs"] = list(data["cordonedLogDirs"])

    def _producer_ids(self, data: Mapping[str, Any]) -> None:
        current = self._values.get("next_producer_id", self.image.next_producer_id)
        if data["nextProducerId"] <= current:
            raise MalformedError(f"next producer id {data['nextProducerId']} is not above {current}")
        self._values["next_producer_id"] = data["nextProducerId"]

    def _quota(self, data: Mapping[str, Any]) -> None:
        entity = tuple(sorted((part["entityType"], part["entityName"]) for part in data["entity"]))
        values = dict(self._get("quotas").get(entity, {}))
        if data["remove"]:
            values.pop(data["key"], None)
        else:
            values[data["key"]] = data["value"]
        quotas = self._own("quotas")
        if values:
            quotas[entity] = values
        else:
            quotas.pop(entity, None)

    def _put(self, name: str, key: _K, data: Mapping[str, _V]) -> None:
        self._own(name)[key] = dict(data)

    def _drop(self, name: str, key: object, what: str | None) -> None:
        if self._own(name).pop(key, None) is None and what is not None:
            raise MalformedError(f"{what} is unknown")


#: Field of PartitionImage to field of a PartitionChangeRecord.
_CHANGED = {
    "isr": "isr",
    "replicas": "replicas",
    "removing": "removingReplicas",
    "adding": "addingReplicas",
    "elr": "eligibleLeaderReplicas",
    "last_known_elr": "lastKnownElr",
    "directories": "directories",
}

_APPLY: dict[int, Callable[[MetadataDelta, Mapping[str, Any]], None]] = {
    RecordType.REGISTER_BROKER: MetadataDelta._register_broker,
    RecordType.UNREGISTER_BROKER: MetadataDelta._unregister_broker,
    RecordType.TOPIC: MetadataDelta._add_topic,
    RecordType.PARTITION: MetadataDelta._set_partition,
    RecordType.CONFIG: MetadataDelta._config,
    RecordType.PARTITION_CHANGE: MetadataDelta._change_partition,
    RecordType.FENCE_BROKER: lambda delta, data: delta._fence(data, True),
    RecordType.UNFENCE_BROKER: lambda delta, data: delta._fence(data, False),
    RecordType.REMOVE_TOPIC: MetadataDelta._remove_topic,
    RecordType.DELEGATION_TOKEN: lambda delta, data: delta._put("tokens", data["tokenId"], data),
    RecordType.USER_SCRAM_CREDENTIAL: lambda delta, data: delta._put("scram", (data["name"], data["mechanism"]), data),
    RecordType.FEATURE_LEVEL: MetadataDelta._feature,
    RecordType.CLIENT_QUOTA: MetadataDelta._quota,
    RecordType.PRODUCER_IDS: MetadataDelta._producer_ids,
    RecordType.BROKER_REGISTRATION_CHANGE: MetadataDelta._change_broker,
    RecordType.ACCESS_CONTROL_ENTRY: lambda delta, data: delta._put("acls", data["id"], data),
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY: lambda delta, data: delta._drop("acls", data["id"], f"ACL {data['id']}"),
    RecordType.REMOVE_USER_SCRAM_CREDENTIAL: lambda delta, data: delta._drop(
        "scram", (data["name"], data["mechanism"]), f"the SCRAM credential of {data['name']}"
    ),
    # Kafka tolerates the removal of an unknown token.
    RecordType.REMOVE_DELEGATION_TOKEN: lambda delta, data: delta._drop("tokens", data["tokenId"], None),
    RecordType.REGISTER_CONTROLLER: lambda delta, data: delta._put("controllers", data["controllerId"], data),
    RecordType.CLEAR_ELR: MetadataDelta._clear_elr,
    RecordType.UNREGISTER_CONTROLLER: lambda delta, data: delta._drop("controllers", data["controllerId"], None),
}


def _check_directories(directories: tuple[str, ...], replicas: tuple[int, ...]) -> None:
    if directories and len(directories) != len(replicas):
        raise MalformedError(f"{len(directories)} log dirs for {len(replicas)} replicas")


def _is_integer(text: str) -> bool:
    digits = text[1:] if text[:1] in ("-", "+") else text
    return digits.isascii() and digits.isdigit()


assert set(_MAPS) <= {field.name for field in fields(MetadataImage)}
