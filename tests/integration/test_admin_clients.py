"""What the administration clients of each library do and get: the same calls to both brokers, the same results."""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Callable
from typing import Any

import aiokafka.admin
import confluent_kafka as ck
import confluent_kafka.admin as cka
import kafka.admin
import kafka.errors
import pytest

from tests.integration.clients.franz import Franz
from tests.integration.clients.interface import SECONDS, Client
from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.conftest import the_client
from tests.integration.records import Message
from tests.integration.servers import Server, until

pytestmark = pytest.mark.kafka
_NOW = int(time.time() * 1000)
Calls = Callable[[Server, dict[str, Client]], list[str]]


def filled(server: Server, topic: str, group: str) -> None:
    """Records in a topic of three partitions, and offsets of a group."""
    server.create(topic, 3, cleanup_policy="delete")
    Librdkafka().produce(server, topic, [Message(b"v", timestamp=_NOW, partition=n % 3) for n in range(30)])
    Librdkafka().read_as_member(server, topic, group, 30)


def librdkafka(server: Server, _: dict[str, Client]) -> list[str]:
    said = _by_librdkafka(server)
    # The client has no `close`: it is gone when nobody knows it any more.
    gc.collect()
    return said


def _by_librdkafka(server: Server) -> list[str]:
    admin = cka.AdminClient({"bootstrap.servers": server.bootstrap})
    said: list[str] = []

    def note(what: str, futures: Any, show: Callable[[Any], Any] = lambda found: found) -> None:
        given = futures if isinstance(futures, dict) else {"": futures}
        for key, future in sorted(given.items(), key=lambda item: str(item[0])):
            try:
                said.append(f"{what} {key}: {show(future.result(SECONDS))}")
            except ck.KafkaException as error:
                said.append(f"{what} {key}: {error.args[0].name()}")

    filled(server, "rd", "g-rd")
    note("create", admin.create_topics([
        cka.NewTopic("rd-a", 2, config={"retention.ms": "100000"}), cka.NewTopic("rd", 1), cka.NewTopic("bad name", 1),
        cka.NewTopic("rd-b", 1, 2), cka.NewTopic("rd-c", 1, config={"cleanup.policy": "shred"}),
    ]))  # fmt: skip
    note("validate", admin.create_topics([cka.NewTopic("rd-d", 2)], validate_only=True))
    until(lambda: "rd-a" in admin.list_topics(timeout=SECONDS).topics, "the new topic")
    note(
        "grow",
        admin.create_partitions(
            [cka.NewPartitions("rd-a", 4), cka.NewPartitions("rd", 1), cka.NewPartitions("rd-no", 2)]
        ),
    )
    topic = cka.ConfigResource(cka.ResourceType.TOPIC, "rd-a")

    def settings(found: Any) -> Any:
        return sorted((each.name, each.value, each.is_default, each.source) for each in found.values())

    note("configs", {"": next(iter(admin.describe_configs([topic]).values()))}, settings)
    change = cka.ConfigResource(
        cka.ResourceType.TOPIC, "rd-a",
        incremental_configs=[cka.ConfigEntry("segment.ms", "90000", incremental_operation=cka.AlterConfigOpType.SET)],
    )  # fmt: skip
    note("alter", {"": next(iter(admin.incremental_alter_configs([change]).values()))})
    until(
        lambda: next(iter(admin.describe_configs([topic]).values())).result(SECONDS)["segment.ms"].value == "90000",
        "the change",
    )
    partitions = [ck.TopicPartition("rd", number) for number in (0, 1, 9)]
    for spec in (ck.admin.OffsetSpec.latest(), ck.admin.OffsetSpec.earliest(), ck.admin.OffsetSpec.max_timestamp()):
        asked = dict.fromkeys(partitions[:2], spec)
        note(
            "offsets",
            {str(key): value for key, value in admin.list_offsets(asked).items()},
            lambda found: (found.offset, found.timestamp > 0),
        )
    deleted = admin.delete_records([ck.TopicPartition("rd", 0, 4), ck.TopicPartition("rd", 1, 99)])
    note("delete records", {str(key): value for key, value in deleted.items()}, lambda found: found.low_watermark)
    note(
        "groups",
        admin.list_consumer_groups(),
        lambda found: sorted(
            (each.group_id, each.state.name, each.type.name) for each in found.valid if "rd" in each.group_id
        ),
    )
    note(
        "describe",
        admin.describe_consumer_groups(["g-rd", "g-no"]),
        lambda found: (found.state.name, found.partition_assignor, len(found.members)),
    )
    note(
        "offsets of",
        admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions("g-rd")]),
        lambda found: sorted(str(each) for each in found.topic_partitions),
    )
    change = ck.ConsumerGroupTopicPartitions("g-rd", [ck.TopicPartition("rd", 2, 1), ck.TopicPartition("rd", 9, 1)])
    note(
        "set offsets of",
        admin.alter_consumer_group_offsets([change]),
        lambda found: sorted(str((each.partition, each.error)) for each in found.topic_partitions),
    )
    note("remove", admin.delete_consumer_groups(["g-rd", "g-no"]))
    note(
        "cluster",
        admin.describe_cluster(include_authorized_operations=True),
        lambda found: (
            found.controller.id,
            len(found.nodes),
            sorted(each.name for each in found.authorized_operations),
        ),
    )
    note(
        "topics",
        {
            str(k): v
            for k, v in admin.describe_topics(
                ck.TopicCollection(["rd", "rd-no"]), include_authorized_operations=True
            ).items()
        },
        lambda found: (
            found.name,
            found.is_internal,
            len(found.partitions),
            sorted(each.name for each in found.authorized_operations),
        ),
    )
    user = cka.UserScramCredentialUpsertion(
        "rd-user", cka.ScramCredentialInfo(cka.ScramMechanism.SCRAM_SHA_256, 4096), b"secret"
    )
    note("password", admin.alter_user_scram_credentials([user]))
    until(lambda: "rd-user" in admin.describe_user_scram_credentials().result(SECONDS), "the credential")
    note(
        "passwords",
        admin.describe_user_scram_credentials(["rd-user", "rd-no"]),
        lambda found: [(str(each.mechanism), each.iterations) for each in found.scram_credential_infos],
    )
    note(
        "no password",
        admin.alter_user_scram_credentials(
            [cka.UserScramCredentialDeletion("rd-user", cka.ScramMechanism.SCRAM_SHA_256)]
        ),
    )
    acl = cka.AclBinding(
        cka.ResourceType.TOPIC,
        "rd",
        cka.ResourcePatternType.LITERAL,
        "User:x",
        "*",
        cka.AclOperation.READ,
        cka.AclPermissionType.ALLOW,
    )
    note("acl", {"": next(iter(admin.create_acls([acl]).values()))})
    note(
        "elect",
        admin.elect_leaders(ck.ElectionType.PREFERRED, partitions),
        lambda found: sorted((str(key), None if error is None else error.name()) for key, error in found.items()),
    )
    note("delete", admin.delete_topics(["rd", "rd-a", "rd-no"]))
    return said


def kafka_python(server: Server, _: dict[str, Client]) -> list[str]:
    said: list[str] = []
    filled(server, "kp", "g-kp")
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=server.bootstrap)

    def note(what: str, call: Callable[[], Any], show: Callable[[Any], Any] = str) -> None:
        try:
            said.append(f"{what}: {show(call())}")
        except kafka.errors.KafkaError as error:
            said.append(f"{what}: {type(error).__name__}")

    def new(name: str, partitions: int = 1, replicas: int = 1, **config: str) -> Any:
        return kafka.admin.NewTopic(
            name, partitions, replicas, topic_configs={key.replace("_", "."): value for key, value in config.items()}
        )

    try:
        for topic in (
            new("kp-a", 2, retention_ms="100000"),
            new("kp"),
            new("bad name"),
            new("kp-b", 1, 2),
            new("kp-c", cleanup_policy="shred"),
        ):
            note(f"create {topic.name}", lambda topic=topic: admin.create_topics([topic]), lambda _: "made")
        until(lambda: "kp-a" in admin.list_topics(), "the new topic")
        note(
            "topics",
            lambda: admin.describe_topics(["kp"]),
            lambda found: [(each["name"], len(each["partitions"]), each["error_code"]) for each in found],
        )
        note("grow", lambda: admin.create_partitions({"kp-a": kafka.admin.NewPartitions(4)}), lambda _: "grown")
        note("grow less", lambda: admin.create_partitions({"kp": kafka.admin.NewPartitions(1)}), lambda _: "grown")
        note("cluster", admin.describe_cluster, lambda found: (found["controller_id"], len(found["brokers"])))
        note("groups", admin.list_groups, lambda found: sorted(str(each) for each in found if "g-kp" in str(each)))
        note(
            "offsets of",
            lambda: admin.list_group_offsets(["g-kp"])["g-kp"],
            lambda found: sorted((str(key), value.offset) for key, value in found.items()),
        )
        partition = kafka.TopicPartition("kp", 0)
        note("delete records", lambda: admin.delete_records({partition: 4}), lambda found: sorted(map(str, found)))
        note("delete group", lambda: admin.delete_groups(["g-kp"]))
        note("delete no group", lambda: admin.delete_groups(["g-no"]))
        note("delete", lambda: admin.delete_topics(["kp", "kp-a"]), lambda _: "deleted")
        note("delete none", lambda: admin.delete_topics(["kp-no"]), lambda _: "deleted")
    finally:
        admin.close()
    return said


def aio_kafka(server: Server, _: dict[str, Client]) -> list[str]:
    said: list[str] = []
    filled(server, "aio", "g-aio")

    async def run() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=server.bootstrap)
        await admin.start()
        try:
            made = await admin.create_topics(
                [aiokafka.admin.NewTopic("aio-a", 2, 1), aiokafka.admin.NewTopic("aio", 1, 1)]
            )
            said.append(str(sorted((row[0], row[1]) for row in made.topic_errors)))
            while "aio-a" not in await admin.list_topics():
                await asyncio.sleep(0.05)
            found = (await admin.describe_topics(["aio"]))[0]
            said.append(str((found["topic"], found["error_code"], len(found["partitions"]))))
            grown = await admin.create_partitions({"aio-a": aiokafka.admin.NewPartitions(4)})
            said.append(str([(row[0], row[1]) for row in grown.topic_errors]))
            said.append(str(sorted(row for row in await admin.list_consumer_groups() if "g-aio" in row[0])))
            offsets = await admin.list_consumer_group_offsets("g-aio")
            said.append(str(sorted((str(key), value.offset) for key, value in offsets.items())))
            partition = aiokafka.TopicPartition("aio", 0)
            said.append(str(await admin.delete_records({partition: aiokafka.admin.RecordsToDelete(4)})))
            gone = await admin.delete_topics(["aio", "aio-a", "aio-no"])
            said.append(str(sorted(gone.topic_error_codes)))
        finally:
            await admin.close()

    asyncio.run(asyncio.wait_for(run(), SECONDS))
    return said


def franz(server: Server, clients: dict[str, Client]) -> list[str]:
    client = the_client(clients, "franz-go")
    assert isinstance(client, Franz)
    filled(server, "kadm", "g-kadm")
    return client.administrate(server, "kadm", "g-kadm")


@pytest.mark.parametrize("calls", [librdkafka, kafka_python, aio_kafka, franz], ids=lambda calls: calls.__name__)
def test_administration_gives_the_same(calls: Calls, pair: tuple[Server, Server], clients: dict[str, Client]) -> None:
    expected, found = (_plain(calls(server, clients)) for server in pair)
    assert found == expected
    assert len(expected) > 5


def _plain(lines: list[str]) -> list[str]:
    """Without ids."""
    return [re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", line) for line in lines]
