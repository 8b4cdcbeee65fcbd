"""The authorizer by itself: who is asked about, what is remembered, what is logged."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from compactd.config.authorization import STANDARD_AUTHORIZER
from compactd.config.settings import DaemonConfig
from compactd.workers.acl_messages import PatternType, Permission
from compactd.workers.broker.image import CatalogueImage
from compactd.workers.broker.requests import Peer, RequestHeader
from compactd.workers.broker.security import authorizer as authorizer_module
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.catalogue_update import AccessRule

ALICE = "User:alice"


class World:
    """A broker's context as far as the authorizer looks at it, and its clock."""

    def __init__(self, **settings: object) -> None:
        self.now = 1000.0
        self.image = CatalogueImage()
        values = {name.replace("_", "."): value for name, value in settings.items()}
        config = DaemonConfig.from_strings({"authorizer.class.name": STANDARD_AUTHORIZER, **values})
        context: Any = SimpleNamespace(config=config, image=self.image, loop=SimpleNamespace(time=lambda: self.now))
        self.authorizer = Authorizer(context)

    def allows(
        self,
        operation: Operation,
        resource: Resource = Resource.TOPIC,
        name: str = "orders",
        who: str = ALICE,
        host: str = "10.0.0.1",
        log: bool = True,
    ) -> bool:
        return self.authorizer.allows(header(who, host), operation, resource, name, log=log)

    def acls(self, *acls: AccessRule) -> None:
        self.image.acls = acls


def header(who: str = ALICE, host: str = "10.0.0.1") -> RequestHeader:
    return RequestHeader(0, 9, 1, "app", Peer(host, 999, principal=who))


def acl(
    operation: Operation,
    name: str = "orders",
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    resource: Resource = Resource.TOPIC,
    principal: str = ALICE,
) -> AccessRule:
    return AccessRule("an-id", resource, name, pattern, principal, "*", operation, permission)


def test_without_an_authorizer_everybody_may_do_everything() -> None:
    world = World(authorizer_class_name="")
    assert not world.authorizer.enabled
    world.acls(acl(Operation.WRITE, permission=Permission.DENY))
    assert world.allows(Operation.WRITE)
    assert world.authorizer.allows_some(header(), Operation.WRITE, Resource.TOPIC)
    assert world.authorizer.operations(header(), Resource.TOPIC, "orders") == 3576
    assert world.authorizer.operations(header(), Resource.GROUP, "g") == 3400
    assert world.authorizer.cluster_operations(header()) == 8096


def test_what_was_allowed_and_denied_is_counted_until_it_is_told() -> None:
    world = World()
    assert world.authorizer.take() == {"allowed": 0, "denied": 0, "acls": 0}
    world.acls(acl(Operation.READ), acl(Operation.WRITE, permission=Permission.DENY))
    for operation in (Operation.READ, Operation.READ, Operation.WRITE, Operation.ALTER):
        world.allows(operation)
    world.allows(Operation.WRITE, log=False)
    assert world.authorizer.take() == {"allowed": 2, "denied": 3, "acls": 2}
    assert world.authorizer.take() == {"allowed": 0, "denied": 0, "acls": 2}
    open_to_all = World(authorizer_class_name="")
    open_to_all.allows(Operation.READ)
    assert open_to_all.authorizer.take() == {"allowed": 0, "denied": 0, "acls": 0}


def test_nobody_may_do_anything_unless_an_acl_says_so() -> None:
    world = World()
    assert not world.allows(Operation.READ)
    world.acls(acl(Operation.READ))
    assert world.allows(Operation.READ)
    assert not world.allows(Operation.WRITE)
    assert not world.allows(Operation.READ, who="User:bob")


def test_super_users_may_do_everything() -> None:
    world = World(super_users="User:root;User:CN=admin,O=x")
    world.acls(acl(Operation.ALL, "*", Permission.DENY, principal="User:*"))
    for who in ("User:root", "User:CN=admin,O=x"):
        assert world.allows(Operation.ALTER, Resource.CLUSTER, "kafka-cluster", who=who)
        assert world.authorizer.allows_some(header(who), Operation.WRITE, Resource.TOPIC)
        assert world.authorizer.cluster_operations(header(who)) == 8096
    assert not world.allows(Operation.READ, who="User:roo")


def test_what_no_acl_is_about_may_be_left_to_everybody() -> None:
    world = World(allow_everyone_if_no_acl_found=True)
    world.acls(acl(Operation.READ))
    assert world.allows(Operation.WRITE, name="payments")
    assert not world.allows(Operation.WRITE, name="orders")
    assert not world.allows(Operation.READ, name="orders", who="User:bob")
    assert world.authorizer.allows_some(header("User:bob"), Operation.WRITE, Resource.TOPIC)


def test_other_acls_count_at_once() -> None:
    world = World()
    for _ in range(2):
        world.acls()
        assert not world.allows(Operation.READ)
        world.acls(acl(Operation.READ))
        assert world.allows(Operation.READ)


def test_operations_are_bits() -> None:
    world = World()
    world.acls(acl(Operation.READ), acl(Operation.ALTER_CONFIGS))
    expected = [Operation.READ, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]
    assert world.authorizer.operations(header(), Resource.TOPIC, "orders") == sum(1 << each for each in expected)
    assert world.authorizer.operations(header(), Resource.TOPIC, "payments") == 0


def test_the_cluster_tells_nothing_to_whom_may_not_describe_it() -> None:
    world = World()
    alter = acl(Operation.ALTER_CONFIGS, "kafka-cluster", resource=Resource.CLUSTER)
    world.acls(alter)
    assert world.authorizer.cluster_operations(header()) == 0
    world.acls(alter, acl(Operation.DESCRIBE, "kafka-cluster", resource=Resource.CLUSTER))
    expected = [Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS, Operation.DESCRIBE]
    assert world.authorizer.cluster_operations(header()) == sum(1 << each for each in expected)


def test_names_of_any_length_and_any_number_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactd.workers.broker.security.authorizer._MOST_DECISIONS", 10)
    world = World()
    world.acls(acl(Operation.READ, "t", pattern=PatternType.PREFIXED))
    for number in range(35):
        assert world.allows(Operation.READ, name=f"t{number}")
        assert not world.allows(Operation.WRITE, name=f"t{number}" + "x" * 10_000)
    assert len(world.authorizer._decided) <= 10
    assert all(len(name) <= 300 for *_, name in world.authorizer._decided)
    assert len(world.authorizer._logged) <= 10
    assert all(len(name) <= 300 for *_, name in world.authorizer._logged)


def test_a_refusal_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()

    def logged() -> list[Any]:
        records = [getattr(record, "fields", None) for record in caplog.records]
        caplog.clear()
        return records

    world.acls(acl(Operation.WRITE, permission=Permission.DENY))
    for _ in range(3):
        world.allows(Operation.WRITE)
        world.allows(Operation.READ)
        world.allows(Operation.READ, name="quiet", log=False)
    first, second = logged()
    assert first == {
        "host": "10.0.0.1",
        "resource": "TOPIC",
        "name": "orders",
        "api": 0,
        "client_id": "app",
        "because": "ACL an-id denies it",
    }
    assert second["because"] == "no ACL allows it"
    world.now += 59
    world.allows(Operation.WRITE)
    assert logged() == []
    world.now += 1
    world.allows(Operation.WRITE)
    world.authorizer.allows_some(header(), Operation.WRITE, Resource.TOPIC)
    assert [fields["name"] for fields in logged()] == ["orders", "any"]


def test_it_says_what_it_goes_by(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    off, on = World(authorizer_class_name=""), World(super_users="User:b;User:a")
    off.authorizer.introduce()
    assert not caplog.records
    for world in (off, on):
        world.acls(acl(Operation.READ))
        world.authorizer.introduce()
    warning, info = caplog.records
    assert (warning.levelname, info.levelname) == ("WARNING", "INFO")
    assert "authorizer.class.name is not set" in warning.getMessage()
    assert getattr(info, "fields", None) == {
        "super_users": "User:a,User:b",
        "acls": 1,
        "everyone_without_acls": False,
    }


@pytest.mark.parametrize("name", ["\0some", "some", "", "\ufffd"])
def test_permission_for_one_group_is_none_for_a_group_with_an_odd_name(name: str) -> None:
    world = World()
    world.acls(acl(Operation.READ, "mine", resource=Resource.GROUP))
    assert world.authorizer.allows_some(header(), Operation.READ, Resource.GROUP)
    assert not world.allows(Operation.READ, Resource.GROUP, name)


def test_what_stands_for_any_resource_is_no_name_that_a_client_can_send() -> None:
    with pytest.raises(UnicodeEncodeError):
        authorizer_module._SOME.encode()


def test_a_flood_of_refusals_is_not_logged_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    for number in range(1000):
        assert not world.allows(Operation.READ, name=f"t{number}")
    assert len(caplog.records) == 100
    world.now += 1
    caplog.clear()
    # What was left out is no secret, and the next ones are logged again: those too that were not before.
    assert not world.allows(Operation.READ, name="t999")
    assert [record.getMessage() for record in caplog.records] == [
        "900 more refusals were not logged: there were too many at once",
        "User:alice may not READ",
    ]


def test_what_is_logged_of_a_client_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    sent = RequestHeader(0, 9, 1, "c" * 30_000, Peer("10.0.0.1", 999, principal=ALICE))
    assert not world.authorizer.allows(sent, Operation.READ, Resource.TOPIC, "t" * 30_000)
    (record,) = caplog.records
    assert len(str(record.__dict__["fields"])) < 1000
