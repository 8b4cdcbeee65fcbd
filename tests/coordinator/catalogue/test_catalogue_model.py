"""Random lives of a catalogue against a model of it: changes, stops, crashes at any call of the file layer."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactd.coordinator.catalogue.acl_changes import acl_of
from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.storage import files
from compactd.storage.metadata.image import MetadataImage
from compactd.workers.acl_messages import Acl, AclFilter, CreateAcls, DeleteAcls
from compactd.workers.catalogue_messages import (
    NO_ID,
    AllocateProducerIds,
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    ProducerIdBlock,
    ResourceChange,
    ResourceResults,
    Struct,
    TopicResults,
)
from compactd.workers.catalogue_update import AccessRule, CatalogueTopic, CatalogueUpdate
from tests.coordinator.catalogues import NODES, StoppedClock, opened, started
from tests.file_faults import FaultyLayer, PowerCut

NAMES = st.sampled_from(["a", "b", "c.d", "c_d", "e", "__consumer_offsets", "bad/name", ""])
SETTINGS = st.sampled_from(
    [("retention.ms", "5"), ("retention.ms", "-1"), ("cleanup.policy", "compact"), ("min.insync.replicas", "1"),
     ("segment.ms", "0"), ("nonsense", "1")]
)  # fmt: skip
BROKER_SETTINGS = st.sampled_from(
    [("log.cleaner.threads", "2"), ("log.retention.ms", "7"), ("node.id", "9"), ("plug.in", "x")]
)
ACLS = st.builds(
    lambda name, operation: Acl(
        resource_type=2,
        resource_name=name,
        pattern_type=3,
        principal="User:a",
        host="*",
        operation=operation,
        permission=3,
    ),
    st.sampled_from(["a", "b", "*", ""]),
    st.sampled_from([3, 4]),
)
COLLIDES = {"c.d": "c_d", "c_d": "c.d"}


def _exactly(acl: Acl) -> AclFilter:
    return AclFilter(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
    )


def _memory() -> Path:
    root = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="compactd-test-", dir=root if root.is_dir() else None))


class CatalogueModel(RuleBasedStateMachine):
    """The model: topics with their number of partitions and settings, broker settings, ids ever given."""

    def __init__(self) -> None:
        super().__init__()
        self.home = _memory()
        self.dirs = [self.home / "d1", self.home / "d2"]
        self.clock = StoppedClock()
        self.topics: dict[str, int] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.broker: dict[str, dict[str, str]] = {"": {"min.insync.replicas": "1"}}
        self.ids: set[str] = set()
        self.next_producer_id = 0
        #: What somebody who follows the updates knows.
        self.followed: dict[str, CatalogueTopic] = {}
        self.followed_brokers: dict[str, dict[str, str]] = {}
        self.acls: set[Acl] = set()
        self.followed_acls: list[AccessRule] = []

    @initialize()
    def begin(self) -> None:
        self.catalogue = opened(
            self.dirs, clock=self.clock, metadata_log_max_record_bytes_between_snapshots=2000, metadata_max_retention_bytes=6000
        )  # fmt: skip
        self.follow(self.catalogue.start(NODES))

    def teardown(self) -> None:
        if hasattr(self, "catalogue"):
            self.catalogue.close()
        shutil.rmtree(self.home)

    def follow(self, update: CatalogueUpdate | None) -> None:
        if update is None:
            return
        if update.full:
            self.followed.clear()
            self.followed_brokers.clear()
        for name in update.deleted:
            self.followed.pop(name, None)
        self.followed.update({topic.name: topic for topic in update.topics})
        self.followed_brokers.update(update.broker_configs)
        if update.acls is not None:
            self.followed_acls = list(update.acls)

    def ask(self, operation: str, arguments: Struct) -> Any:
        results, update = self.catalogue.apply(operation, arguments)
        self.follow(update)
        return results

    @rule(topic=NAMES, partitions=st.integers(-1, 4), configs=st.lists(SETTINGS, max_size=2, unique_by=lambda c: c[0]))
    def create(self, topic: str, partitions: int, configs: list[tuple[str, str]]) -> None:
        results = self.ask(
            "create_topics",
            CreateTopics(topics=(NewTopic(name=topic, num_partitions=partitions, configs=tuple(configs)),)),
        )
        assert isinstance(results, TopicResults)
        (result,) = results.results
        bad = {("segment.ms", "0"), ("nonsense", "1")} & set(configs)
        if topic in self.topics:
            assert result.error == 36
        elif topic in ("", "bad/name") or COLLIDES.get(topic) in self.topics:
            assert result.error == 17
        elif bad:
            assert result.error == 40
        elif partitions == 0:
            assert result.error == 37
        else:
            assert result.error == 0
            assert result.topic_id not in self.ids
            self.ids.add(result.topic_id)
            self.topics[topic] = max(partitions, 1)
            self.configs[topic] = dict(configs)

    @rule(topic=NAMES, by_id=st.booleans())
    def delete(self, topic: str, by_id: bool) -> None:
        known = self.catalogue.image.topics.get(topic)
        asked = (None, known.topic_id) if by_id and known is not None else (topic, NO_ID)
        results = self.ask("delete_topics", DeleteTopics(topics=(asked,)))
        assert isinstance(results, TopicResults)
        assert results.results[0].error == (0 if topic in self.topics else 3)
        self.topics.pop(topic, None)
        self.configs.pop(topic, None)

    @rule(topic=NAMES, count=st.integers(0, 6))
    def grow(self, topic: str, count: int) -> None:
        results = self.ask("create_partitions", CreatePartitions(topics=(MorePartitions(name=topic, count=count),)))
        assert isinstance(results, TopicResults)
        if topic not in self.topics:
            assert results.results[0].error == 3
        elif count <= self.topics[topic]:
            assert results.results[0].error == 37
        else:
            assert results.results[0].error == 0
            self.topics[topic] = count

    @rule(topic=NAMES, setting=SETTINGS, remove=st.booleans())
    def alter(self, topic: str, setting: tuple[str, str], remove: bool) -> None:
        name, value = setting
        operation = ConfigOperation.DELETE if remove else ConfigOperation.SET
        change = ConfigChange(name=name, value=None if remove else value, operation=operation)
        results = self.ask(
            "alter_configs", AlterConfigs(resources=(ResourceChange(type=2, name=topic, configs=(change,)),))
        )
        assert isinstance(results, ResourceResults)
        error = results.results[0].error
        if error == 0:
            assert topic in self.topics
            if remove:
                self.configs[topic].pop(name, None)
            else:
                self.configs[topic][name] = value
        else:
            unknown = topic not in self.topics
            assert unknown or (not remove and setting in (("segment.ms", "0"), ("nonsense", "1")))

    @rule(node=st.sampled_from(["", "1"]), setting=BROKER_SETTINGS, remove=st.booleans())
    def alter_broker(self, node: str, setting: tuple[str, str], remove: bool) -> None:
        name, value = setting
        operation = ConfigOperation.DELETE if remove else ConfigOperation.SET
        change = ConfigChange(name=name, value=None if remove else value, operation=operation)
        results = self.ask(
            "alter_configs", AlterConfigs(resources=(ResourceChange(type=4, name=node, configs=(change,)),))
        )
        assert isinstance(results, ResourceResults)
        if name == "node.id" and not remove:
            assert results.results[0].error == 42
            return
        assert results.results[0].error == 0
        stored = self.broker.setdefault(node, {})
        if remove:
            stored.pop(name, None)
        else:
            stored[name] = value

    @rule()
    def producer_ids(self) -> None:
        block = self.ask("allocate_producer_ids", AllocateProducerIds())
        assert isinstance(block, ProducerIdBlock)
        assert block.first == self.next_producer_id
        self.next_producer_id += block.count

    @rule(acls=st.lists(ACLS, max_size=3))
    def create_acls(self, acls: list[Acl]) -> None:
        results = self.ask("create_acls", CreateAcls(acls=tuple(acls)))
        for acl, result in zip(acls, results.results, strict=True):
            assert result.error == (0 if acl.resource_name else 42)
        self.acls.update(acl for acl in acls if acl.resource_name)

    @rule(filters=st.lists(ACLS, max_size=2))
    def delete_acls(self, filters: list[Acl]) -> None:
        results = self.ask("delete_acls", DeleteAcls(filters=tuple(_exactly(acl) for acl in filters)))
        for acl, result in zip(filters, results.results, strict=True):
            assert set(result.acls) == self.acls & {acl}
        self.acls.difference_update(filters)

    @rule(hours=st.sampled_from([0, 1, 200]))
    def maintain(self, hours: int) -> None:
        self.clock.ms += hours * 3_600_000
        self.catalogue.maintain()

    @rule(orderly=st.booleans())
    def start_again(self, orderly: bool) -> None:
        before = self.catalogue.image
        if orderly:
            self.catalogue.close()
            before = self.catalogue.image
        else:
            self.catalogue._log.close()
        self.catalogue = opened(
            self.dirs, clock=self.clock, metadata_log_max_record_bytes_between_snapshots=2000, metadata_max_retention_bytes=6000
        )  # fmt: skip
        assert self.catalogue.image == before
        self.follow(self.catalogue.start(NODES))

    @precondition(lambda self: hasattr(self, "catalogue"))
    @invariant()
    def the_image_is_the_model(self) -> None:
        image = self.catalogue.image
        assert {name: len(topic.partitions) for name, topic in image.topics.items()} == self.topics
        stored = {name: dict(image.topic_configs(name)) for name in self.topics}
        assert stored == self.configs
        for node, values in self.broker.items():
            assert dict(image.broker_configs(node)) == values
        assert image.next_producer_id == self.next_producer_id
        assert sorted(map(repr, map(acl_of, image.acls.values()))) == sorted(map(repr, self.acls))
        places = {(topic.topic_id, number) for topic in image.topics.values() for number in topic.partitions}
        assert set(self.catalogue._places.by_partition) == places

    @precondition(lambda self: hasattr(self, "catalogue"))
    @invariant()
    def whoever_follows_the_updates_knows_the_same(self) -> None:
        full = self.catalogue.full_update()
        assert self.followed == {topic.name: topic for topic in full.topics}
        followed = {node: values for node, values in self.followed_brokers.items() if values}
        assert followed == full.broker_configs
        assert sorted(map(repr, self.followed_acls)) == sorted(map(repr, full.acls or ()))


TestCatalogueModel = CatalogueModel.TestCase


# ---- crashes


_ACL = Acl(
    resource_type=2, resource_name="x", pattern_type=3, principal="User:a", host="*", operation=3, permission=3
)  # fmt: skip


def _life(catalogue: Catalogue, done: list[MetadataImage]) -> None:
    """A few changes of every kind; `done` gets the image after each that was acknowledged."""
    steps: list[tuple[str, Struct]] = [
        ("create_topics", CreateTopics(topics=(NewTopic(name="x", num_partitions=3), NewTopic(name="y")))),
        ("alter_configs", AlterConfigs(resources=(
            ResourceChange(type=2, name="x", configs=(ConfigChange(name="retention.ms", value="5"),)),
            ResourceChange(type=4, name="", configs=(ConfigChange(name="log.cleaner.threads", value="2"),)),
        ))),
        ("create_partitions", CreatePartitions(topics=(MorePartitions(name="y", count=2),))),
        ("allocate_producer_ids", AllocateProducerIds()),
        ("create_acls", CreateAcls(acls=(_ACL, msgspec.structs.replace(_ACL, host="10.0.0.0/8")))),
        ("delete_topics", DeleteTopics(topics=(("x", NO_ID),))),
        ("delete_acls", DeleteAcls(filters=(_exactly(_ACL),))),
        ("create_topics", CreateTopics(topics=(NewTopic(name="x"),))),
    ]  # fmt: skip
    for operation, arguments in steps:
        catalogue.apply(operation, arguments)
        done.append(catalogue.image)
        catalogue.maintain()
    catalogue.close()
    done.append(catalogue.image)


def _content(image: MetadataImage) -> tuple[object, ...]:
    """What a client can see, leaderships left out."""
    topics = {
        name: (topic.topic_id, {number: state.replicas for number, state in topic.partitions.items()})
        for name, topic in image.topics.items()
    }
    configs = {resource: values for resource, values in image.configs.items() if values}
    return topics, configs, image.next_producer_id, image.features, sorted(map(repr, image.acls.values()))


@pytest.mark.parametrize("after", [False, True])
def test_a_stop_at_any_call_leaves_what_was_acknowledged_and_at_most_one_change_more(
    fast_dir: Path, after: bool
) -> None:
    number = 0
    while True:
        dirs = [fast_dir / str(number) / name for name in ("d1", "d2")]
        dirs[0].parent.mkdir()
        layer = FaultyLayer()
        layer.stop_at(number, after)
        images: list[MetadataImage] = []
        stopped = False
        with files.replaced(layer):
            try:
                catalogue = started(
                    dirs, metadata_log_max_record_bytes_between_snapshots=300, metadata_max_retention_bytes=900
                )
                images.append(catalogue.image)
                _life(catalogue, images)
            except PowerCut:
                stopped = True
            layer.lose_unsynced(seed=number if number % 3 else None)
        again = started(dirs)
        reached = _content(again.image)
        if images:
            seen = [_content(image) for image in images]
            # The last acknowledged one, or one that nobody was told of yet.
            assert reached not in seen[:-1] or reached == seen[-1]
            assert set(images[-1].topics) <= set(again.image.topics) | {"x"}
            assert again.image.next_producer_id >= images[-1].next_producer_id
        assert again.image.features["metadata.version"] == 33
        again.close()
        shutil.rmtree(dirs[0].parent)
        if not stopped:
            break
        number += 1
    assert number > 60
