"""Files of real brokers: what Kafka's distribution ships, and such files with logins and ACLs, are taken as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.config.errors import SettingError
from compactd.config.listener_security import securities
from compactd.coordinator.configuration import Configuration

#: The settings of config/server.properties of Kafka 4.4.0; log.dirs apart.
SHIPPED = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
#log.flush.interval.messages=10000
#log.flush.interval.ms=1000
log.retention.hours=168
#log.retention.bytes=1073741824
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""

#: The same with people who log in: SCRAM and PLAIN, ACLs, and what a broker needs to reach itself and its controller.
WITH_LOGINS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=SASL_PLAINTEXT://:9092,CONTROLLER://:9093
advertised.listeners=SASL_PLAINTEXT://kafka.example.org:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:SASL_PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
security.inter.broker.protocol=SASL_PLAINTEXT
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="admin" password="secret" user_admin="secret" user_alice="hush";
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.controller.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="admin" password="secret" user_admin="secret";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin
allow.everyone.if.no.acl.found=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def read(directory: Path, text: str, *sets: str) -> Configuration:
    """The file of a broker whose log dir is `directory`/d1."""
    path = directory / "server.properties"
    path.write_text(f"{text}log.dirs={directory}/d1\n")
    return Configuration(sets, path)


def test_what_kafka_ships_is_taken_and_every_line_is_accounted_for(tmp_path: Path) -> None:
    configuration = read(tmp_path, SHIPPED)
    daemon = configuration.resolve(None).daemon
    assert [(each.name, each.port) for each in daemon.open_listeners] == [("PLAINTEXT", 9092)]
    assert [each.host for each in daemon.told_listeners] == ["localhost"]
    assert (daemon.socket_send_buffer_bytes, daemon.socket_receive_buffer_bytes) == (102_400, 102_400)
    assert not [each for each in configuration.unused if each.unknown]
    assert {each.name for each in configuration.unused} == {
        "process.roles", "controller.quorum.bootstrap.servers", "inter.broker.listener.name", "num.network.threads",
        "num.io.threads", "offsets.topic.replication.factor", "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr", "transaction.state.log.replication.factor",
    }  # fmt: skip
    assert all(each.reason.partition("no effect here: ")[2] for each in configuration.unused)


def test_the_file_of_a_broker_with_logins_and_acls(tmp_path: Path) -> None:
    configuration = read(tmp_path, WITH_LOGINS)
    daemon = configuration.resolve(None).daemon
    security = securities(daemon)["SASL_PLAINTEXT"]
    assert security.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    assert security.users == {"admin": "secret", "alice": "hush"}
    assert daemon.super_users == "User:admin"
    assert not [each for each in configuration.unused if each.unknown]
    assert "hush" not in repr(configuration.unused)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("transaction.two.phase.commit.enable=true", "two-phase commit cannot be had"),
        ("offsets.topic.replication.factor=3", "write 1"),
        ("default.replication.factor=2", "write 1"),
        ("remote.log.storage.system.enable=true", "tiered storage cannot be had"),
        ("create.topic.policy.class.name=org.example.NoTopics", "classes of your own cannot be loaded"),
        ("process.roles=controller", "would serve nobody"),
        ("group.coordinator.rebalance.protocols=classic,consumer,share", "share groups are not served"),
        ("controller.quorum.voters=1@a:9093,2@b:9093,3@c:9093", "no other voters"),
        ("metadata.log.dir=/fast/metadata", "put this one first"),
        ("broker.id=7\nnode.id=6", "the same as node.id, which is 6"),
    ],
)
def test_what_this_node_cannot_do_is_refused_by_name_and_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        read(tmp_path, f"# first\n{line}\n")
    assert line.partition("=")[0] in str(caught.value)
    assert "server.properties:2" in str(caught.value)
    assert said in str(caught.value)


def test_the_old_name_of_the_node_counts_where_the_new_one_is_not_given(tmp_path: Path) -> None:
    assert read(tmp_path, "broker.id=7\n").resolve(None).daemon.node_id == 7
    assert read(tmp_path, "broker.id=7\nnode.id=7\n").resolve(None).daemon.node_id == 7
    assert read(tmp_path, "broker.id=-1\nnode.id=4\n").resolve(None).daemon.node_id == 4
    assert read(tmp_path, "broker.id=-1\n").resolve(None).daemon.node_id == 1
    with pytest.raises(SettingError, match="whole number"):
        read(tmp_path, "broker.id=seven\n")


def test_settings_of_the_table_that_nothing_acts_on_are_told_when_they_are_given(tmp_path: Path) -> None:
    configuration = read(tmp_path, "background.threads=4\nlog.segment.bytes=2000000\n", "min.insync.replicas=2")
    told = {each.name: (each.source, each.reason) for each in configuration.unused}
    assert told.keys() == {"background.threads", "min.insync.replicas"}
    assert told["background.threads"][0] == "server.properties:1"
    assert told["min.insync.replicas"][0] == "--set"
    assert all("no effect here" in reason for _, reason in told.values())
