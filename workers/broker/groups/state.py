"""What one partition of `__consumer_offsets` says: groups and offsets, rebuilt record by record (facts B3).

Everything in the log counts, up to its end. Later records win. Offsets committed in a transaction wait for its marker,
and then count only if they are newer than what is there: compaction may have kept an older and a newer one of both kinds.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from compactd.storage.metadata.offsets import OFFSETS_RECORDS, decode_offsets_record
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.groups.consumer import changes as consumer_changes
from compactd.workers.broker.groups.consumer.group import ConsumerGroup
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.member import Member, State
from compactd.workers.broker.groups.records import GROUP_METADATA, NO_ID, OFFSET_COMMIT, Committed, read_offset
from compactd.workers.broker.groups.streams import changes as streams_changes
from compactd.workers.broker.groups.streams.group import StreamsGroup

#: (topic, partition)
TopicPartitionKey = tuple[str, int]

#: Record types of groups of other protocols, by the name of their kind in ListGroups.
_OTHER_KINDS = dict.fromkeys((10, 11, 12, 13, 14, 15), "share")
_MEMBER_TYPE, _GROUP_TYPE = 10, 11
_TYPE_SIZE = 2


class _Change(Protocol):
    @property
    def is_tombstone(self) -> bool: ...


class _MadeHere(Protocol):
    """A group whose assignment the broker makes."""

    def apply(self, change: Any) -> None: ...


_G = TypeVar("_G", bound=_MadeHere)


@dataclass(slots=True)
class OtherGroup:
    """A group of a protocol that another broker served: it is kept and listed, nobody can join it here."""

    kind: str
    members: set[str] = field(default_factory=set)


@dataclass(slots=True)
class GroupState:
    """Everything that a partition's log holds."""

    #: Makes a group: id, time of its state.
    new_group: Callable[[str, int], ClassicGroup]
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    consumers: dict[str, ConsumerGroup] = field(default_factory=dict)
    streams: dict[str, StreamsGroup] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartitionKey, Committed]] = field(default_factory=dict)
    #: Producer id to the offsets of its open transaction, by group.
    pending: dict[int, dict[str, dict[TopicPartitionKey, Committed]]] = field(default_factory=dict)
    others: dict[str, OtherGroup] = field(default_factory=dict)
    #: Record types that nobody knows, with how many there were.
    unknown: dict[int, int] = field(default_factory=dict)

    # ---- loading

    def replay(self, offset: int, key: bytes, value: bytes | None, producer_id: int = -1) -> None:
        """One record; `producer_id` of a transactional one, else -1. Raises MalformedError."""
        number = int.from_bytes(key[:_TYPE_SIZE], "big", signed=True)
        if len(key) >= _TYPE_SIZE and number not in OFFSETS_RECORDS:
            self.unknown[number] = self.unknown.get(number, 0) + 1
            return
        quickly = read_offset(key, value) if number == OFFSET_COMMIT else None
        if quickly is not None:
            group_id, topic, partition, committed = quickly
            if committed is not None:
                committed = replace(committed, record_offset=offset)
            self._take(group_id, (topic, partition), committed, producer_id)
            return
        record = decode_offsets_record(key, value)
        if number <= OFFSET_COMMIT:
            self._replay_offset(offset, record, producer_id)
        elif number == GROUP_METADATA:
            self._replay_group(record)
        elif number in consumer_changes.TYPES:
            key_fields = record["key"]
            change = consumer_changes.change_of(number, key_fields, record["value"])
            self._replay_made_here(key_fields["groupId"], change, self.consumers, ConsumerGroup, "consumer")
        elif number in streams_changes.TYPES:
            key_fields = record["key"]
            said = streams_changes.change_of(number, key_fields, record["value"])
            self._replay_made_here(key_fields["groupId"], said, self.streams, StreamsGroup, "streams")
        else:
            self._replay_other(number, record)

    def _replay_offset(self, offset: int, record: dict[str, Any], producer_id: int) -> None:
        key, value = record["key"], record["value"]
        committed = None
        if value is not None:
            committed = Committed(
                value["offset"],
                value.get("leaderEpoch", -1),
                value["metadata"],
                value["commitTimestamp"],
                value.get("expireTimestamp", -1),
                value.get("topicId", NO_ID),
                offset,
            )
        self._take(key["group"], (key["topic"], key["partition"]), committed, producer_id)

    def _take(self, group_id: str, where: TopicPartitionKey, committed: Committed | None, producer_id: int) -> None:
        if committed is None:
            self.forget(group_id, where)
            return
        if producer_id >= 0:
            self.pending.setdefault(producer_id, {}).setdefault(group_id, {})[where] = committed
        else:
            self.offsets.setdefault(group_id, {})[where] = committed
        self._known(group_id)

    def _known(self, group_id: str) -> None:
        """Offsets make a group, of nobody so far."""
        if not self.is_known(group_id):
            self.groups[group_id] = self.new_group(group_id, -1)

    def is_known(self, group_id: str) -> bool:
        """There is a group, of whatever protocol."""
        return any(group_id in each for each in (self.groups, self.consumers, self.streams, self.others))

    def ids(self) -> list[str]:
        """Of all groups."""
        return [*self.groups, *self.consumers, *self.streams, *self.others]

    def _replay_group(self, record: dict[str, Any]) -> None:
        group_id, value = record["key"]["group"], record["value"]
        self.consumers.pop(group_id, None)
        self.streams.pop(group_id, None)
        if value is None:
            self.groups.pop(group_id, None)
            return
        self.others.pop(group_id, None)
        group = self.groups[group_id] = self.new_group(group_id, value.get("currentStateTimestamp", -1))
        group.generation = value["generation"]
        group.protocol_type = value["protocolType"] or None
        group.protocol_name = value["protocol"]
        for each in value["members"]:
            session_ms = each["sessionTimeout"]
            rebalance_ms = each.get("rebalanceTimeout", -1)
            member = Member(
                each["memberId"],
                each.get("groupInstanceId"),
                each["clientId"],
                each["clientHost"],
                session_ms if rebalance_ms < 0 else rebalance_ms,
                session_ms,
                ((value["protocol"] or "", base64.b64decode(each["subscription"])),),
                base64.b64decode(each["assignment"]),
            )
            group.insert(member, value["protocolType"])
        if group.members:
            group.state = State.STABLE
            group.leader = value["leader"] if value["leader"] in group.members else group.leader

    def _replay_made_here(
        self, group_id: str, change: _Change, groups: dict[str, _G], make: Callable[[str], _G], kind: str
    ) -> None:
        """A record of a group whose assignment the broker makes: of `groups`, where it is a kind of group by itself."""
        group = groups.get(group_id)
        if group is None:
            classic = self.groups.get(group_id)
            is_other = self.is_known(group_id) and classic is None
            if is_other or (classic is not None and not _is_simple(classic)):
                if change.is_tombstone and classic is None:
                    return
                raise MalformedError(f"group {group_id} is no {kind} group, but has a record of one")
            if change.is_tombstone:
                return
            self.groups.pop(group_id, None)
            group = groups[group_id] = make(group_id)
        group.apply(change)
        if change.is_tombstone and isinstance(change, (consumer_changes.Epoch, streams_changes.Epoch)):
            del groups[group_id]

    def _replay_other(self, number: int, record: dict[str, Any]) -> None:
        group_id = record["key"]["groupId"]
        kind, is_there = _OTHER_KINDS[number], record["value"] is not None
        other = self.others.get(group_id)
        if number == _GROUP_TYPE and not is_there:
            self.others.pop(group_id, None)
            return
        if other is None:
            if not is_there:
                return
            self.groups.pop(group_id, None)
            other = self.others[group_id] = OtherGroup(kind)
        if number == _MEMBER_TYPE:
            (other.members.add if is_there else other.members.discard)(record["key"]["memberId"])

    # ---- offsets

    def transaction_ended(self, producer_id: int, commit: bool) -> None:
        """Its offsets count from now on, or never."""
        for group_id, offsets in self.pending.pop(producer_id, {}).items():
            if not commit:
                continue
            known = self.offsets.setdefault(group_id, {})
            for where, committed in offsets.items():
                before = known.get(where)
                if before is None or committed.record_offset > before.record_offset:
                    known[where] = committed

    def forget(self, group_id: str, where: TopicPartitionKey) -> None:
        """An offset was deleted, also from open transactions."""
        _drop(self.offsets, group_id, where)
        for offsets in self.pending.values():
            _drop(offsets, group_id, where)

    def commit(self, group_id: str, offsets: Mapping[TopicPartitionKey, Committed]) -> None:
        """Offsets were written to the log."""
        self.offsets.setdefault(group_id, {}).update(offsets)

    def commit_pending(
        self, producer_id: int, group_id: str, offsets: Mapping[TopicPartitionKey, Committed]
    ) -> None:  # fmt: skip
        """Offsets were written to the log in a transaction: they wait for the marker."""
        self.pending.setdefault(producer_id, {}).setdefault(group_id, {}).update(offsets)

    def is_pending(self, group_id: str, where: TopicPartitionKey) -> bool:
        """An open transaction commits it."""
        return any(where in offsets.get(group_id, ()) for offsets in self.pending.values())

    def pending_of(self, group_id: str) -> Iterator[TopicPartitionKey]:
        """What open transactions commit for a group."""
        for offsets in self.pending.values():
            yield from offsets.get(group_id, ())


def _is_simple(group: ClassicGroup) -> bool:
    """Nobody was ever in it: it holds offsets, and has no record of its own."""
    return group.protocol_type is None and not group.members


def _drop(
    offsets: dict[str, dict[TopicPartitionKey, Committed]], group_id: str, where: TopicPartitionKey
) -> None:  # fmt: skip
    known = offsets.get(group_id)
    if known is not None:
        known.pop(where, None)
        if not known:
            del offsets[group_id]
