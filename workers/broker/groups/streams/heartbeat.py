"""StreamsGroupHeartbeat: members join, say what they have, are told what to run, and leave (KIP-1071).

Kafka's GroupMetadataManager, streamsGroupHeartbeat and what it calls. Everything here plans: see `planning`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.heartbeat import not_fenced, unreleased
from compactd.workers.broker.groups.consumer.heartbeat_request import invalid
from compactd.workers.broker.groups.consumer.member import JOINING, LEAVING_STATIC
from compactd.workers.broker.groups.member import NEVER, GroupError
from compactd.workers.broker.groups.streams import changes
from compactd.workers.broker.groups.streams.changes import Change
from compactd.workers.broker.groups.streams.configured import ConfiguredSubtopology, ConfiguredTopology, configure
from compactd.workers.broker.groups.streams.endpoints import endpoint_rows
from compactd.workers.broker.groups.streams.group import GroupPhase, StreamsGroup
from compactd.workers.broker.groups.streams.heartbeat_request import Heartbeat, HeartbeatAnswer, TaskOffset
from compactd.workers.broker.groups.streams.member import MemberState, StreamsMember, TaskOffsets
from compactd.workers.broker.groups.streams.planning import Plan, Planner, StatusRow, server_error
from compactd.workers.broker.groups.streams.reconcile import Step
from compactd.workers.broker.groups.streams.settings import RACK_AWARE_TAGS
from compactd.workers.broker.groups.streams.status import Status
from compactd.workers.broker.groups.streams.tasks import OWNS_NOTHING, OwnedTuple, Tasks, TaskTuple
from compactd.workers.broker.groups.streams.topology import Topology


class Heartbeats(Planner):
    """Plans for heartbeats."""

    __slots__ = ()

    def plan(self, plan: Plan, request: Heartbeat) -> None:
        """A member that is in the group, or wants to be. GroupError."""
        group, group_id = plan.group, plan.group.group_id
        is_joining = request.epoch == JOINING
        if is_joining:
            self._check_room(group, request.member_id, request.instance_id)
        replaced = group.static_member(request.instance_id)
        if replaced is not None and replaced.member_id == request.member_id:
            replaced = None
        old = self._member(plan, request)
        new = _updated(old, request)
        status: list[StatusRow] = []
        recompute = self._said(plan, old, new, request.instance_id)
        topology = self._topology(plan, request.topology)
        if group.topology is not None and new.topology_epoch < group.topology.epoch:
            status.append(
                (
                    Status.STALE_TOPOLOGY,
                    f"The member's topology epoch {new.topology_epoch} is behind the group's topology epoch "
                    f"{group.topology.epoch}.",
                )
            )
        metadata_hash, configured = self._configured(plan, topology)
        recompute |= metadata_hash != group.metadata.metadata_hash
        validated_epoch = -1
        if configured.is_ready:
            validated_epoch = topology.epoch
            for tasks in (request.active, request.standby, request.warmup):
                _check_tasks(configured.subtopologies or {}, tasks)
        if request.task_offsets is not None or request.task_end_offsets is not None:
            known = group.task_offsets.get(request.member_id, TaskOffsets())
            group.task_offsets[request.member_id] = _told_offsets(known, request)
        recompute |= validated_epoch != group.metadata.validated_topology_epoch
        configs = self.settings.assignment_configs(group_id)
        recompute |= configs != group.metadata.configs
        is_refined = (
            not recompute
            and group.phase is GroupPhase.STABLE
            and group.target_of(new.member_id) != new.assigned.without_epochs()
        )
        epoch = group.epoch
        if recompute or is_refined:
            epoch = self.bump(plan, metadata_hash, validated_epoch, configs)
        self._delay(plan)
        target_epoch, target = self.retarget(plan, epoch, new, configured, configs, status, is_refined=is_refined)
        reconciled = self._reconcile(plan, new, target_epoch, target, request.owned)
        self._keep_alive(plan, new.member_id)
        if request.shutdown:
            _ask_to_shut_down(group, new.member_id)
        answer = HeartbeatAnswer(
            reconciled.member_id,
            reconciled.epoch,
            self.settings.heartbeat_interval_ms(group_id),
            self.settings.task_offset_interval_ms(group_id),
            self.settings.acceptable_recovery_lag(group_id),
            status=status,
        )
        tasks_changed = old.assigned != reconciled.assigned
        if is_joining or tasks_changed:
            answer.assigned = reconciled.assigned
        endpoint_changed = old.endpoint != new.endpoint
        if endpoint_changed or (tasks_changed and new.endpoint is not None):
            group.endpoint_epoch += 1
        if group.endpoint_epoch != request.endpoint_epoch:
            answer.endpoints = endpoint_rows(self.topics, group, configured, reconciled, replaced)
        if plan.is_known:
            answer.endpoint_epoch = group.endpoint_epoch
        if configured.problem is not None:
            status.append(configured.problem)
            answer.missing = configured.missing
        if group.shutdown_member is not None:
            status.append(
                (
                    Status.SHUTDOWN_APPLICATION,
                    f"Streams group member {group.shutdown_member} encountered a fatal error and requested a shutdown "
                    "for the entire application.",
                )
            )
        status += _missing_tags(new, dict(configs).get(RACK_AWARE_TAGS, ""), request.knows_tags)
        plan.answer = answer

    # ---- who it is

    def _check_room(self, group: StreamsGroup, member_id: str, instance_id: str | None) -> None:
        """GroupError: nobody more may join."""
        if instance_id is not None and instance_id in group.static:
            return
        most = self.settings.max_size
        if len(group.members) >= most and member_id not in group.members:
            raise GroupError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The streams group has reached its maximum capacity of {most} members.",
            )

    def _member(self, plan: Plan, request: Heartbeat) -> StreamsMember:
        group, member_id, instance_id = plan.group, request.member_id, request.instance_id
        if request.epoch == JOINING:
            known = group.static_member(instance_id)
            if instance_id is None or known is None:
                return group.members.get(member_id) or StreamsMember(member_id)
            if known.epoch != LEAVING_STATIC:
                raise unreleased(member_id, instance_id, known.member_id)
            return self._replaced(plan, known, member_id)
        member = group.member(member_id) if instance_id is None else known_static(group, member_id, instance_id)
        _check_epoch(member, request)
        return member

    @staticmethod
    def _replaced(plan: Plan, known: StreamsMember, member_id: str) -> StreamsMember:
        """Another member in place of one with the same instance id: it has what that had."""
        new = replace(known, member_id=member_id, epoch=0, previous_epoch=0)
        plan.changes += removal(known.member_id)
        plan.changes += [
            changes.MemberSaid(member_id, new),
            changes.Target(member_id, plan.group.target_of(known.member_id)),
            changes.Current(member_id, new),
        ]
        return new

    # ---- what it said

    @staticmethod
    def _said(plan: Plan, old: StreamsMember, new: StreamsMember, instance_id: str | None) -> bool:
        """Notes what a member said of itself; whether that asks for another assignment."""
        if new == old:
            return False
        plan.changes.append(changes.MemberSaid(new.member_id, new))
        return instance_id is None or new.says_other_than(old)

    @staticmethod
    def _topology(plan: Plan, said: Topology | None) -> Topology:
        """The group's, which the first member says. GroupError: it is another one."""
        known = plan.group.topology
        if said is None:
            if known is None:
                raise server_error()
            return known
        said.check()
        if known is None:
            plan.changes.append(changes.TopologySaid(said))
            return said
        if known.epoch <= said.epoch and known != said:
            raise invalid("Topology updates are not supported yet.")
        return known

    def _configured(self, plan: Plan, topology: Topology) -> tuple[int, ConfiguredTopology]:
        """The hash of the topology's topics, and what it comes to with them."""
        group, version = plan.group, self.topics.version
        metadata_hash = group.metadata.metadata_hash
        if group.topology is not None and group.configured is not None and group.checked_version == version:
            return metadata_hash, group.configured
        metadata_hash = self.topics.hash_of(topology.required_topics)
        changed = group.topology is None or metadata_hash != group.metadata.metadata_hash
        configured = group.configured
        if changed or configured is None:
            configured = configure(topology, metadata_hash, self._partitions_of)

        def note() -> None:
            group.checked_version = version
            if configured is not group.configured:
                group.configure(configured, plan.log_end)

        plan.noted.append(note)
        return metadata_hash, configured

    def _partitions_of(self, topic: str) -> int | None:
        topic_id = self.topics.id_of(topic)
        return None if topic_id is None else self.topics.partitions_of(topic_id)

    # ---- what it gets

    def _delay(self, plan: Plan) -> None:
        """A group that nobody is in waits for more members than the first one."""
        group = plan.group
        delay = self.settings.initial_rebalance_delay_ms(group.group_id)
        if group.members or delay <= 0 or group.initial_delay != NEVER:
            return
        at = group.initial_delay = plan.now.ticks + delay

        def set_timer(known: StreamsGroup) -> None:
            known.initial_delay = at

        plan.then.append(set_timer)

    @staticmethod
    def _reconcile(
        plan: Plan, member: StreamsMember, target_epoch: int, target: TaskTuple, reported: TaskTuple | None
    ) -> StreamsMember:
        """The member one step nearer to its target. GroupError: it has to join anew."""
        if member.is_reconciled_to(target_epoch):
            return member
        found = Step(plan.group, target_epoch, target, reported).of(member)
        if found == member:
            return found
        plan.changes.append(changes.Current(found.member_id, found))
        at = NEVER
        if found.state is MemberState.UNREVOKED:
            at = plan.now.ticks + found.rebalance_timeout_ms

        def set_timer(group: StreamsGroup) -> None:
            deadline = group.deadline(found.member_id)
            deadline.revocation, deadline.revocation_epoch = at, found.epoch

        plan.then.append(set_timer)
        return found

    def _keep_alive(self, plan: Plan, member_id: str) -> None:
        """Starts the member's session over."""
        at = plan.now.ticks + self.settings.session_timeout_ms(plan.group.group_id)

        def start(group: StreamsGroup) -> None:
            group.deadline(member_id).session = at

        plan.then.append(start)

    # ---- members go

    def plan_leave(self, plan: Plan, request: Heartbeat) -> None:
        """A member leaves, for ever or (epoch -2) for a while. GroupError."""
        group = plan.group
        if request.shutdown:
            _ask_to_shut_down(group, request.member_id)
        plan.answer = HeartbeatAnswer(request.member_id, request.epoch)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = known_static(group, request.member_id, request.instance_id)
            if request.epoch == LEAVING_STATIC:
                # With epochs of assignment of 0 whoever comes back may commit.
                active = {subtopology: dict.fromkeys(each, 0) for subtopology, each in member.assigned.active.items()}
                assigned = OwnedTuple(active, member.assigned.standby, member.assigned.warmup)
                gone = replace(member, epoch=LEAVING_STATIC, assigned=assigned, revoking=OWNS_NOTHING)
                plan.changes.append(changes.Current(member.member_id, gone))
                return
        self.plan_removal(plan, member)

    def plan_removal(self, plan: Plan, member: StreamsMember) -> None:
        """A member is gone; the group goes on without it."""
        group, metadata = plan.group, plan.group.metadata
        plan.changes += removal(member.member_id)
        epoch = self.bump(plan, metadata.metadata_hash, metadata.validated_topology_epoch, metadata.configs)
        if len(group.members) == 1:
            # Of an empty group: whoever comes next does not wait for his assignment.
            plan.changes.append(changes.TargetEpoch(epoch, 0))

    # ---- time

    def plan_delayed(self, plan: Plan) -> None:
        """The group has waited for members: now they are given tasks. GroupError."""
        group = plan.group
        if not group.members or group.epoch <= group.assignment_epoch or group.configured is None:
            return
        self.retarget(plan, group.epoch, None, group.configured, group.metadata.configs, [])


def removal(member_id: str) -> list[Change]:
    """A member's end; the order is looked at when the log is loaded."""
    return [changes.Current(member_id), changes.Target(member_id), changes.MemberSaid(member_id)]


def known_static(group: StreamsGroup, member_id: str, instance_id: str) -> StreamsMember:
    """The member with this instance id. GroupError where it is another one, or nobody."""
    member = group.static_member(instance_id)
    not_fenced(member_id, instance_id, None if member is None else member.member_id)
    assert member is not None
    return member


def _updated(old: StreamsMember, request: Heartbeat) -> StreamsMember:
    """The member with what it says now; what it does not say stays, but for the endpoint of one that joins.

    GroupError: a tag is there twice, which Kafka does not expect.
    """
    tags = old.client_tags if request.client_tags is None else dict(request.client_tags)
    if request.client_tags is not None and len(tags) < len(request.client_tags):
        raise server_error()
    endpoint = request.endpoint
    if endpoint is None and request.epoch != JOINING:
        endpoint = old.endpoint
    return replace(
        old,
        instance_id=request.instance_id or old.instance_id,
        rack_id=request.rack_id or old.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if request.rebalance_timeout_ms != -1
        else old.rebalance_timeout_ms,
        topology_epoch=old.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=old.process_id if request.process_id is None else request.process_id,
        endpoint=endpoint,
        client_tags=tags,
    )


def _check_epoch(member: StreamsMember, request: Heartbeat) -> None:
    """A member comes with the epoch that it was told last, or with the one before, if the answer was lost. GroupError."""
    epoch = request.epoch
    if epoch == member.epoch:
        return
    if epoch < member.epoch and epoch == member.previous_epoch and _has_all(member.assigned, request.owned):
        return
    which = "greater" if epoch > member.epoch else "smaller"
    raise GroupError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {which} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _has_all(assigned: OwnedTuple, owned: TaskTuple | None) -> bool:
    if owned is None:
        return False
    has = assigned.without_epochs()
    return all(
        subtopology in known and partitions <= known[subtopology]
        for said, known in ((owned.active, has.active), (owned.standby, has.standby), (owned.warmup, has.warmup))
        for subtopology, partitions in said.items()
    )


def _check_tasks(subtopologies: Mapping[str, ConfiguredSubtopology], tasks: Tasks | None) -> None:
    """GroupError: there are no such tasks."""
    for subtopology, partitions in (tasks or {}).items():
        known = subtopologies.get(subtopology)
        if known is None:
            raise invalid(f"Subtopology {subtopology} does not exist in the topology.")
        for partition in sorted(partitions):
            if not 0 <= partition < known.tasks:
                raise invalid(
                    f"Task {partition} for subtopology {subtopology} is invalid. Number of tasks for this subtopology: "
                    f"{known.tasks}"
                )


def _told_offsets(before: TaskOffsets, request: Heartbeat) -> TaskOffsets:
    """GroupError: one is there twice."""
    return TaskOffsets(
        before.reached if request.task_offsets is None else _by_task(request.task_offsets),
        before.ends if request.task_end_offsets is None else _by_task(request.task_end_offsets),
    )


def _by_task(offsets: Sequence[TaskOffset]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for subtopology, partition, offset in offsets:
        if partition in found.setdefault(subtopology, {}):
            raise invalid(
                f"Task offsets contain a duplicate entry for subtopology {subtopology} and partition {partition}."
            )
        found[subtopology][partition] = offset
    return found


def _ask_to_shut_down(group: StreamsGroup, member_id: str) -> None:
    """The first one that asks is told to all."""
    if group.shutdown_member is None:
        group.shutdown_member = member_id


def _missing_tags(member: StreamsMember, wanted: str, is_understood: bool) -> list[StatusRow]:
    missing = [tag for tag in wanted.split(",") if tag not in member.client_tags] if wanted else []
    if not missing or not is_understood:
        return []
    text = (
        f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. "
        "Configure them via 'client.tag.<tagKey>' in your Streams config."
    )
    return [(Status.MISSING_CLIENT_TAGS, text)]
