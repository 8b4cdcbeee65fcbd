"""The catalogue: topics, partitions, settings and producer ids, kept where Kafka keeps them, in its records.

One object in one thread (the lane "catalogue"). A change is decided against the image, tried on a copy of it, appended to
`__cluster_metadata-0` as one batch, fsynced, and only then seen: the image is replaced, never changed, so that others may
hold on to one. The life of the log between two runs of Kafka: facts kraft-and-coordinators A15.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from compactd.config.errors import RefusedError
from compactd.coordinator.catalogue import leadership
from compactd.coordinator.catalogue.acl_changes import plan_create_acls, plan_delete_acls
from compactd.coordinator.catalogue.adoption import (
    Identity,
    check_log,
    check_metadata_dir,
    identify,
    no_metadata,
    settle,
    survey,
)
from compactd.coordinator.catalogue.config_changes import plan_alter
from compactd.coordinator.catalogue.credential_changes import plan_credentials
from compactd.coordinator.catalogue.feature_changes import plan_features, voters_controls
from compactd.coordinator.catalogue.mutation_quotas import Charge, MutationQuotas
from compactd.coordinator.catalogue.places import Places
from compactd.coordinator.catalogue.quota_changes import plan_quotas
from compactd.coordinator.catalogue.told import Endpoints, Nodes, Teller
from compactd.coordinator.catalogue.topic_changes import Context, Place, Plan, plan_create, plan_delete, plan_grow
from compactd.coordinator.catalogue.words import tell
from compactd.coordinator.interfaces import CatalogueOutcome, CatalogueSetup, Settings
from compactd.storage.metadata.delta import MetadataDelta
from compactd.storage.metadata.image import MetadataImage
from compactd.storage.metadata.load import LoadedImage, load_image
from compactd.storage.metadata.metadata_log import MetadataLog, MetadataLogSettings
from compactd.storage.metadata.record_types import MetadataRecord, RecordType
from compactd.storage.metadata.records import encode_control_record, read_body, read_frame
from compactd.storage.metadata.snapshots import write_snapshot
from compactd.workers.acl_messages import AclDeletions, AclResults, CreateAcls, DeleteAcls
from compactd.workers.catalogue_messages import (
    AlterConfigs,
    AssignLogDirs,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ErrorCode,
    MoveReplica,
    MoveResult,
    MoveResults,
    PreferLogDirs,
    ProducerIdBlock,
    ResourceResults,
    Struct,
    TopicResults,
    arguments_of,
    to_raw,
)
from compactd.workers.catalogue_update import CatalogueUpdate
from compactd.workers.credential_messages import AlterCredentials, CredentialResults
from compactd.workers.feature_messages import QuorumState, UpdateFeatures
from compactd.workers.message import Endpoint
from compactd.workers.quota_messages import AlterClientQuotas, QuotaResults

_LOG = logging.getLogger("compactd.catalogue")

#: Producer ids are handed out in blocks of this many.
PRODUCER_ID_BLOCK = 1000

#: Records of one batch, where several will do; Kafka splits at the same number.
_BATCH_RECORDS = 10_000

_CORDONED = "cordoned.log.dirs"
_PLAINTEXT = "PLAINTEXT"


class Catalogue:
    """Open one with `open`, then `start` it. Errors of the disk are StorageIOError, LogOfflineError."""

    def __init__(
        self,
        setup: CatalogueSetup,
        cluster_id: str,
        identities: Sequence[Identity],
        log: MetadataLog,
        loaded: LoadedImage,
        bootstrap: leadership.Bootstrap,
        places: dict[tuple[str, int], str],
    ) -> None:
        self._setup = setup
        self._settings = setup.settings
        self._clock = setup.clock
        self._cluster_id = cluster_id
        self._log = log
        self._bootstrap = bootstrap
        self._image = loaded.image
        self._places = Places(identities, places)
        self._mutations = MutationQuotas(setup.settings, setup.clock)
        self._nodes: Nodes = ()
        self._endpoints: Endpoints = ()
        self._started = False
        self._snapshot_ms = setup.clock.now_ms()

    @classmethod
    def open(cls, setup: CatalogueSetup) -> Catalogue:
        """Reads what the log dirs hold, formatting empty ones, and checks that this node may go on with it.

        The log dirs must be locked. RefusedError says what stands in the way and what to do; CorruptFileError: the
        metadata log can't be read; StorageIOError.
        """
        settings = setup.settings
        first = Path(settings.storage.log_dirs[0]) if settings.storage.log_dirs else None
        if not setup.log_dirs or (first is not None and first in setup.offline):
            why = setup.offline.get(first, "no log dir can be used") if first is not None else "log.dirs is empty"
            raise RefusedError(
                path=str(first),
                reason=f"it is the first entry of log.dirs, which holds the catalogue, and can not be used: {why}",
                advice="Mend it; nothing can be served without the catalogue.",
            )
        node_id = settings.daemon.node_id
        cluster_id, identities = identify(setup.log_dirs, setup.offline, node_id, setup.clock.now_ms())
        check_metadata_dir(identities)
        log = MetadataLog.open(setup.log_dirs[0], log_settings(settings))
        try:
            loaded = load_image(log)
            bootstrap = leadership.read_bootstrap(log, loaded)
            check_log(log, loaded, bootstrap, node_id, identities[0])
            found = survey(identities, loaded, node_id)
            if found.strays and not loaded.has_records:
                raise no_metadata(log.directory, found.strays[0].path)
        except BaseException:
            log.close()
            raise
        for action in log.actions:
            _LOG.info("%s: %s", log.directory, action)
        settle(found)
        return cls(setup, cluster_id, identities, log, loaded, bootstrap, found.places)

    # ---- what is known

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def node_id(self) -> int:
        return self._settings.daemon.node_id

    @property
    def broker_epoch(self) -> int:
        """Of this node's registration, for the clean shutdown markers; -1 before `start`."""
        registration = self._image.brokers.get(self.node_id)
        return -1 if registration is None else int(registration["brokerEpoch"])

    @property
    def image(self) -> MetadataImage:
        """Everything that is durable. It never changes: the next change has another one."""
        return self._image

    # ---- life

    def start(self, nodes: Nodes, endpoints: Endpoints = ()) -> CatalogueUpdate:
        """Begins to write: a new raft epoch, what a fresh log needs, leadership of every partition. The full catalogue.

        `nodes`: (node id, host, port) that clients are told, by worker number. `endpoints`: the same by listener.
        """
        now_ms, log, bootstrap = self._clock.now_ms(), self._log, self._bootstrap
        self._nodes, self._endpoints = nodes, endpoints
        kraft_version = max(self._image.kraft_version, bootstrap.kraft_version)
        log.begin_epoch(self.node_id, now_ms, kraft_version, bootstrap.controls)
        delta = MetadataDelta(self._image)
        for control, data in bootstrap.decoded_controls:
            delta.control(control, data)
        self._image = delta.apply(log.end_offset, log.last_epoch, now_ms)
        self._commit(bootstrap.records)
        host, port = (nodes[0][1], nodes[0][2]) if nodes else ("127.0.0.1", 9092)
        own = endpoints[0] if endpoints else (Endpoint(_PLAINTEXT, host, port),)
        self._commit(
            leadership.registration_records(
                self._image,
                self.node_id,
                log.end_offset,
                own,
                sorted(self._places.identities),
                self._settings.daemon.broker_rack,
            )
        )
        self._places.place_homeless(self._image, self.node_id, self._cordoned(), guess=not self._setup.offline)
        self._commit(leadership.elect(self._image, self.node_id, self._places.by_partition, self._places.is_online))
        self._started = True
        self._snapshot_ms = now_ms
        return self.full_update()

    def change(self, operation: str, arguments: msgspec.Raw) -> CatalogueOutcome:
        """Decides and, unless refused, writes one change; durable on return.

        Raises KeyError for an unknown operation and msgspec.ValidationError for arguments that don't fit it. After
        StorageIOError nothing of the change is in the image, and LogOfflineError says that no more can be made.
        """
        results, update = self.apply(operation, arguments_of(operation, arguments))
        return CatalogueOutcome(results=to_raw(results), update=update)

    def apply(self, operation: str, arguments: Struct) -> tuple[Struct, CatalogueUpdate | None]:
        """As `change`, with arguments and results as structs."""
        operations: dict[str, Callable[[Any], tuple[Struct, CatalogueUpdate | None]]] = {
            "create_topics": self._create_topics,
            "delete_topics": self._delete_topics,
            "create_partitions": self._create_partitions,
            "alter_configs": self._alter_configs,
            "allocate_producer_ids": self._allocate_producer_ids,
            "assign_log_dirs": self._assign_log_dirs,
            "alter_credentials": self._alter_credentials,
            "create_acls": self._create_acls,
            "delete_acls": self._delete_acls,
            "alter_client_quotas": self._alter_client_quotas,
            "prefer_log_dirs": self._prefer_log_dirs,
            "update_features": self._update_features,
            "describe_quorum": self._describe_quorum,
        }
        return operations[operation](arguments)

    def log_dir_failed(self, log_dir: Path) -> CatalogueUpdate | None:
        """This dir takes no new partitions until the next start, and those it holds have no leader."""
        lost = self._places.fail(log_dir)
        return None if lost is None else self._commit(leadership.resign(self._image, self.node_id, lost))

    def settings_changed(self, settings: Settings) -> None:
        """From now on these count for new topics, placement, snapshots and retention."""
        self._settings = settings
        self._log.settings = log_settings(settings)

    def maintain(self) -> None:
        """Writes a snapshot when one is due, and deletes what it and time make superfluous."""
        now_ms, settings = self._clock.now_ms(), self._log.settings
        grown = self._log.bytes_since_snapshot
        interval = settings.max_snapshot_interval_ms
        is_old = grown > 0 and 0 < interval <= now_ms - self._snapshot_ms
        if self._image.features and (grown >= settings.max_record_bytes_between_snapshots or is_old):
            self._log.add_snapshot(write_snapshot(self._log.directory, self._image, now_ms))
            self._snapshot_ms = now_ms
        for path in self._log.trim(now_ms):
            _LOG.info("removed %s, covered by a newer snapshot", path)

    def close(self) -> None:
        """Orderly stop: every leadership is given up in Kafka's own form, so that the next start is a clean one."""
        try:
            if self._started:
                self._started = False
                led = set(self._places.by_partition)
                self._commit(leadership.resign(self._image, self.node_id, led))
        finally:
            self._log.close()

    # ---- what others are told

    def full_update(self) -> CatalogueUpdate:
        """The whole catalogue."""
        return self._teller().everything()

    def _teller(self) -> Teller:
        daemon = self._settings.daemon
        return Teller(
            self._image,
            self._places,
            self._cluster_id,
            self.node_id,
            daemon.broker_workers,
            self._nodes,
            self._endpoints,
        )

    # ---- changes

    def _create_topics(self, request: CreateTopics) -> tuple[Struct, CatalogueUpdate | None]:
        charge = self._mutations.of(self._image, request.by)
        return self._carry_out(plan_create(request, self._context(charge)), charge)

    def _create_partitions(self, request: CreatePartitions) -> tuple[Struct, CatalogueUpdate | None]:
        charge = self._mutations.of(self._image, request.by)
        return self._carry_out(plan_grow(request, self._context(charge)), charge)

    def _delete_topics(self, request: DeleteTopics) -> tuple[Struct, CatalogueUpdate | None]:
        charge = self._mutations.of(self._image, request.by)
        return self._carry_out(plan_delete(request, self._context(charge)), charge)

    def _carry_out(self, plan: Plan, charge: Charge) -> tuple[Struct, CatalogueUpdate | None]:
        results = TopicResults(results=tuple(plan.results), throttle_ms=charge.throttle_ms)
        update = self._commit(plan.records, plan.places)
        for place_ in plan.places:
            self._places.made(self._image.names.get(place_.topic_id, ""), place_.partition)
        return results, update

    def _alter_client_quotas(self, request: AlterClientQuotas) -> tuple[Struct, CatalogueUpdate | None]:
        plan = plan_quotas(request, self._image)
        return QuotaResults(results=tuple(plan.results)), self._commit(plan.records)

    def _alter_configs(self, request: AlterConfigs) -> tuple[Struct, CatalogueUpdate | None]:
        plan = plan_alter(request, self._context(), self._settings)
        return ResourceResults(results=tuple(plan.results)), self._commit(plan.records)

    def _allocate_producer_ids(self, request: Struct) -> tuple[Struct, CatalogueUpdate | None]:
        first = self._image.next_producer_id
        following = first + PRODUCER_ID_BLOCK
        if following >= 1 << 63:
            text = "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit"
            return ProducerIdBlock(first=-1, count=0, error=ErrorCode.UNKNOWN_SERVER_ERROR, message=text), None
        data = {"brokerId": self.node_id, "brokerEpoch": self.broker_epoch, "nextProducerId": following}
        self._commit([MetadataRecord(RecordType.PRODUCER_IDS, data)])
        return ProducerIdBlock(first=first, count=PRODUCER_ID_BLOCK), None

    def _assign_log_dirs(self, request: AssignLogDirs) -> tuple[Struct, CatalogueUpdate | None]:
        results, records, places = [], [], []
        for move in request.moves:
            code, message, directory = self._check_move(move)
            results.append(MoveResult(topic_id=move.topic_id, partition=move.partition, error=code, message=message))
            if code == ErrorCode.NONE:
                places.append(Place(move.topic_id, move.partition, directory))
                records += leadership.moved(self._image, move.topic_id, move.partition, directory)
        update = self._commit(records, places)
        if places and update is None:
            # The cluster is too old for records that tell log dirs; the brokers have to know all the same.
            update = self._teller().topics({self._image.names[place.topic_id] for place in places})
        return MoveResults(results=tuple(results)), update

    def _alter_credentials(self, request: AlterCredentials) -> tuple[Struct, CatalogueUpdate | None]:
        plan = plan_credentials(request, self._image)
        return CredentialResults(results=tuple(plan.results)), self._commit(plan.records)

    def _create_acls(self, request: CreateAcls) -> tuple[Struct, CatalogueUpdate | None]:
        plan = plan_create_acls(request, self._image)
        return AclResults(results=tuple(plan.results)), self._commit(plan.records)

    def _delete_acls(self, request: DeleteAcls) -> tuple[Struct, CatalogueUpdate | None]:
        plan = plan_delete_acls(request, self._image)
        return AclDeletions(results=tuple(plan.results)), self._commit(plan.records)

    def _check_move(self, move: MoveReplica) -> tuple[ErrorCode, str | None, str]:
        directory = self._places.at(move.log_dir)
        if directory is None:
            return ErrorCode.LOG_DIR_NOT_FOUND, f"{move.log_dir} is not in log.dirs", ""
        if self._places.has_failed(directory.directory_id):
            return ErrorCode.KAFKA_STORAGE_ERROR, f"log dir {move.log_dir} is offline", ""
        if (move.topic_id, move.partition) not in self._places.by_partition:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, ""
        return ErrorCode.NONE, None, directory.directory_id

    def _context(self, charge: Charge | None = None) -> Context:
        taken: Counter[str] = Counter()

        daemon = self._settings.daemon
        context = Context(
            self._image,
            self.node_id,
            daemon.num_partitions,
            daemon.delete_topic_enable,
            lambda count: self._places.choose(count, self._cordoned(), taken),
            self._inherited,
            preferred=self._places.preferred,
            daemon=daemon,
        )
        return context if charge is None else replace(context, charge=charge.record)

    def _prefer_log_dirs(self, request: PreferLogDirs) -> tuple[Struct, CatalogueUpdate | None]:
        """Remembered until the partition is made or the daemon stops, as by Kafka's broker."""
        for wanted in request.partitions:
            self._places.prefer(wanted.topic, wanted.partition, wanted.log_dir)
        return MoveResults(results=()), None

    def _update_features(self, request: UpdateFeatures) -> tuple[Struct, CatalogueUpdate | None]:
        plan = plan_features(request, self._image, self.node_id)
        update = self._commit(plan.records)
        if plan.names_voters:
            self._name_voters()
            update = msgspec.structs.replace(
                update or self._teller().topics(()),
                features=self._teller().features(),
                metadata_offset=self._image.offset - 1,
            )
        return plan.result, update

    def _name_voters(self) -> None:
        """kraft.version 1: control records, which are a batch of their own."""
        metadata_dir = min(self._places.identities.values(), key=lambda identity: identity.order)
        host, port = (self._nodes[0][1], self._nodes[0][2]) if self._nodes else ("127.0.0.1", 9092)
        controls = voters_controls(self._image, self.node_id, metadata_dir.directory_id, host, port)
        now_ms, delta = self._clock.now_ms(), MetadataDelta(self._image)
        for name, _, data in controls:
            delta.control(name, data)
        self._log.append_controls([encode_control_record(number, 0, data) for _, number, data in controls], now_ms)
        self._image = delta.apply(self._log.end_offset, self._log.last_epoch, now_ms)

    def _describe_quorum(self, request: Struct) -> tuple[Struct, CatalogueUpdate | None]:
        voters = [voter for voter in self._image.voters or () if voter["voterId"] == self.node_id]
        directory = voters[0]["voterDirectoryId"] if voters else ""
        state = QuorumState(
            leader_epoch=self._log.last_epoch, log_end_offset=self._log.end_offset, directory_id=directory
        )
        return state, None

    def _inherited(self, name: str) -> str | None:
        """The dynamic broker setting that stands for a compaction lag which a topic doesn't set itself."""
        for resource in (str(self.node_id), ""):
            value = self._image.broker_configs(resource).get(f"log.cleaner.{name}")
            if value is not None:
                return value
        return None

    # ---- inside

    def _commit(self, records: Sequence[MetadataRecord], places: Iterable[Place] = ()) -> CatalogueUpdate | None:
        """Tries the records on the image, appends them, and only then lets them be seen. None: there were none."""
        if not records:
            self._places.put(places)
            return None
        before, delta = self._image, MetadataDelta(self._image)
        for start in range(0, len(records), _BATCH_RECORDS):
            values = [record.value for record in records[start : start + _BATCH_RECORDS]]
            for value in values:
                # Read back as the next start will: what it could not read must not be written.
                frame = read_frame(value)
                delta.replay(frame.api_key, read_body(frame, value))
            now_ms = self._clock.now_ms()
            self._log.append(values, now_ms)
            self._image = delta.apply(self._log.end_offset, self._log.last_epoch, now_ms)
            self._places.put(places)
            self._places.forget(delta.deleted_topics)
        if self._started:
            for change in tell(records, before):
                _LOG.info("%s", change)
        return self._teller().changes(delta, before)

    def _cordoned(self) -> set[str]:
        """Paths that take no new partitions: the dynamic setting of this node hides that of the file."""
        dynamic = self._image.broker_configs(self.node_id).get(_CORDONED)
        entries = self._settings.storage.cordoned_log_dirs if dynamic is None else dynamic.split(",")
        return {str(Path(entry.strip())) for entry in entries if entry.strip()}


def log_settings(settings: Settings) -> MetadataLogSettings:
    """The metadata log's share of the daemon's settings."""
    daemon = settings.daemon
    return MetadataLogSettings(
        segment_bytes=daemon.metadata_log_segment_bytes,
        segment_ms=daemon.metadata_log_segment_ms,
        max_record_bytes_between_snapshots=daemon.metadata_log_max_record_bytes_between_snapshots,
        max_snapshot_interval_ms=daemon.metadata_log_max_snapshot_interval_ms,
        max_retention_bytes=daemon.metadata_max_retention_bytes,
        max_retention_ms=daemon.metadata_max_retention_ms,
    )
