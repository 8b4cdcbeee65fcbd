"""What ACLs say: the cases of Kafka's StandardAuthorizer, and random ones against the rules read one by one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from compactd.workers.acl_hosts import host_text
from compactd.workers.acl_messages import Operation, PatternType, Permission, Resource
from compactd.workers.broker.security.access_rules import AccessRules, Decision
from compactd.workers.catalogue_update import AccessRule

ALICE, HOST = "User:alice", "10.0.0.1"


def rule(
    name: str = "orders",
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = ALICE,
    host: str = "*",
    resource: Resource = Resource.TOPIC,
) -> AccessRule:
    return AccessRule("id", resource, name, pattern, principal, host, operation, permission)


def allowed(*rules: AccessRule, operation: Operation = Operation.READ, name: str = "orders", who: str = ALICE) -> bool:
    return AccessRules(rules).decide(who, HOST, operation, Resource.TOPIC, name).allowed


def test_without_rules_nothing_is_allowed_and_nothing_is_there() -> None:
    assert AccessRules().decide(ALICE, HOST, Operation.READ, Resource.TOPIC, "orders") == Decision(False, None, False)


def test_rules_of_others_are_there_but_do_not_help() -> None:
    other = rule(principal="User:bob")
    assert AccessRules([other]).decide(ALICE, HOST, Operation.READ, Resource.TOPIC, "orders") == Decision(
        False, None, True
    )
    elsewhere = rule(name="payments")
    assert not AccessRules([elsewhere]).decide(ALICE, HOST, Operation.READ, Resource.TOPIC, "orders").has_rules
    assert not AccessRules([rule(resource=Resource.GROUP)]).decide(ALICE, HOST, 3, Resource.TOPIC, "orders").has_rules


def test_patterns() -> None:
    assert allowed(rule())
    assert not allowed(rule(), name="orders2")
    assert not allowed(rule(name="ord"))
    assert allowed(rule(name="ord", pattern=PatternType.PREFIXED))
    assert allowed(rule(name="orders", pattern=PatternType.PREFIXED))
    assert not allowed(rule(name="orders.", pattern=PatternType.PREFIXED))
    assert allowed(rule(name="*"))
    assert not allowed(rule(name="*", pattern=PatternType.PREFIXED))
    assert allowed(rule(name="*", pattern=PatternType.PREFIXED), name="*x")


def test_denial_comes_first_wherever_it_is() -> None:
    for name, pattern in (("orders", PatternType.LITERAL), ("*", PatternType.LITERAL), ("o", PatternType.PREFIXED)):
        assert not allowed(rule(), rule(name, permission=Permission.DENY, pattern=pattern))
        assert not allowed(rule(name, permission=Permission.DENY, pattern=pattern), rule())
    assert allowed(rule(), rule(permission=Permission.DENY, principal="User:bob"))


def test_permission_implies_description_and_denial_does_not() -> None:
    for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL):
        assert allowed(rule(operation=operation), operation=Operation.DESCRIBE)
    for operation in (Operation.CREATE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS):
        assert not allowed(rule(operation=operation), operation=Operation.DESCRIBE)
    assert allowed(rule(operation=Operation.ALTER_CONFIGS), operation=Operation.DESCRIBE_CONFIGS)
    assert not allowed(rule(operation=Operation.ALTER), operation=Operation.DESCRIBE_CONFIGS)
    denied = rule(permission=Permission.DENY)
    assert allowed(rule(operation=Operation.DESCRIBE), denied, operation=Operation.DESCRIBE)
    assert not allowed(rule(operation=Operation.DESCRIBE), denied, operation=Operation.READ)
    assert not allowed(rule(), rule(operation=Operation.ALL, permission=Permission.DENY), operation=Operation.DESCRIBE)


def test_who_and_from_where() -> None:
    assert allowed(rule(principal="User:*"))
    assert not allowed(rule(principal="Group:*"))
    assert not allowed(rule(principal="User:Alice"))
    assert allowed(rule(host=HOST))
    assert not allowed(rule(host="10.0.0.2"))
    assert allowed(rule(host="10.0.0.0/24"))
    assert not allowed(rule(host="10.0.1.0/24"))
    assert not allowed(rule(host="10.0.0.0/99"))
    six = AccessRules([rule(host="0:0:0:0:0:0:0:1")])
    assert six.decide(ALICE, "::1", Operation.READ, Resource.TOPIC, "orders").allowed
    assert not AccessRules([rule(host="::1")]).decide(ALICE, "::1", Operation.READ, Resource.TOPIC, "orders").allowed


def test_some_resource() -> None:
    def some(*rules: AccessRule) -> bool:
        return AccessRules(rules).allows_some(ALICE, HOST, Operation.WRITE, Resource.TOPIC)

    def write(name: str, permission: Permission = Permission.ALLOW, prefixed: bool = False) -> AccessRule:
        pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
        return rule(name, Operation.WRITE, permission, pattern)

    deny = Permission.DENY
    assert not some()
    assert some(write("orders"))
    assert not some(rule("orders", Operation.READ))
    assert some(rule("orders", Operation.ALL))
    assert some(write("*"))
    assert not some(write("*"), write("*", deny))
    assert some(write("*"), write("orders", deny))
    assert not some(write("orders"), write("orders", deny))
    assert some(write("orders"), write("payments"), write("orders", deny))
    assert not some(write("orders"), write("ord", deny, prefixed=True))
    assert not some(write("ord", prefixed=True), write("ord", deny, prefixed=True))
    assert some(write("ord", prefixed=True), write("ord", deny))
    assert some(write("ord", prefixed=True), write("orders", deny, prefixed=True))
    assert not some(rule("orders", Operation.WRITE, resource=Resource.GROUP))
    assert not some(rule("orders", Operation.WRITE, principal="User:bob"))
    assert not some(rule("orders", Operation.WRITE, host="10.9.9.9"))


_NAMES = st.sampled_from(["a", "ab", "abc", "b", "*", "a*"])
_OPERATIONS = st.sampled_from(
    [Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]
)  # fmt: skip
_RULES = st.builds(
    rule,
    _NAMES,
    _OPERATIONS,
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([ALICE, "User:bob", "User:*"]),
    st.sampled_from(["*", HOST, "10.0.0.2", "10.0.0.0/8", "11.0.0.0/8"]),
    st.sampled_from([Resource.TOPIC, Resource.GROUP]),
)


def one_by_one(rules: Sequence[AccessRule], operation: Operation, name: str) -> tuple[bool, bool, bool]:
    """(denied, permitted, any of the resource): every rule looked at, as the sentences of facts 18.1 say."""
    denied = permitted = found = False
    for each in rules:
        literal = each.pattern_type == PatternType.LITERAL
        applies = each.resource_name in (name, "*") if literal else name.startswith(each.resource_name)
        if each.resource_type != Resource.TOPIC or not applies:
            continue
        found = True
        about_me = each.principal in (ALICE, "User:*") and each.host in ("*", HOST, "10.0.0.0/8")
        if not about_me:
            continue
        if each.permission == Permission.DENY:
            denied |= each.operation in (operation, Operation.ALL)
        else:
            permitted |= each.operation in (operation, Operation.ALL)
            permitted |= operation == Operation.DESCRIBE and each.operation in (Operation.READ, Operation.WRITE)
            permitted |= operation == Operation.DESCRIBE_CONFIGS and each.operation == Operation.ALTER_CONFIGS
    return denied, permitted, found


@settings(max_examples=400, deadline=None)
@given(st.lists(_RULES, max_size=8), _OPERATIONS.filter(lambda each: each is not Operation.ALL), _NAMES)
def test_random_rules(rules: list[AccessRule], operation: Operation, name: str) -> None:
    decision = AccessRules(rules).decide(ALICE, HOST, operation, Resource.TOPIC, name)
    denied, permitted, found = one_by_one(rules, operation, name)
    assert decision.allowed == (permitted and not denied)
    assert decision.has_rules == found
    assert host_text(HOST) == HOST
    if decision.rule is not None:
        assert (decision.rule.permission == Permission.ALLOW) == decision.allowed
