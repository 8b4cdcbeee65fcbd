"""SASL outside of SASL, ACLs without an authorizer, quotas, credentials."""

from __future__ import annotations

from typing import Any

from tests.integration.answers.recording import Recording

(SASL_HANDSHAKE, DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, SASL_AUTHENTICATE, DESCRIBE_QUOTAS, ALTER_QUOTAS,
 DESCRIBE_SCRAM, ALTER_SCRAM) = (17, 29, 30, 31, 36, 48, 49, 50, 51)  # fmt: skip
APIS = (
    SASL_HANDSHAKE, DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, SASL_AUTHENTICATE, DESCRIBE_QUOTAS, ALTER_QUOTAS,
    DESCRIBE_SCRAM, ALTER_SCRAM,
)  # fmt: skip


def security(script: Recording) -> None:
    script.each("on a listener without SASL", SASL_HANDSHAKE, {"mechanism": "PLAIN"})
    script.each("on a listener without SASL", SASL_AUTHENTICATE, {"auth_bytes": b"\0a\0b"})
    acls(script)
    quotas(script)
    credentials(script)


def acls(script: Recording) -> None:
    """Without an authorizer there are none (SECURITY_DISABLED)."""
    filters = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    script.each("any", DESCRIBE_ACLS, filters)
    script.each("any", DELETE_ACLS, {"filters": [filters, {**filters, "resource_type_filter": 2}]})
    one = {
        "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip
    script.each("two", CREATE_ACLS, {"creations": [one, {**one, "resource_name": ""}]})


def quotas(script: Recording) -> None:
    def alter(entity: list[tuple[str, str | None]], *ops: tuple[str, float, bool], **more: Any) -> dict[str, Any]:
        given = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
        rows = [{"key": key, "value": value, "remove": remove} for key, value, remove in ops]
        return {"entries": [{"entity": given, "ops": rows}], "validate_only": False, **more}

    rate = ("producer_byte_rate", 1e6, False)
    for entity, op in (
        ([("user", "quota-a")], rate), ([("client-id", "quota-b")], rate), ([("user", "quota-a"), ("client-id", None)], rate),
        ([("user", None)], ("consumer_byte_rate", 5e6, False)), ([("ip", "10.0.0.1")], ("connection_creation_rate", 9.0, False)),
        ([], rate), ([("nothing", "x")], rate), ([("user", "a"), ("user", "b")], rate), ([("user", "")], rate),
        ([("user", "a")], ("no_such", 1.0, False)), ([("user", "a")], ("producer_byte_rate", 0.0, False)),
        ([("user", "a")], ("producer_byte_rate", 1.5, False)), ([("ip", "nonsense!")], ("connection_creation_rate", 9.0, False)),
        ([("ip", "10.0.0.1"), ("user", "a")], ("connection_creation_rate", 9.0, False)), ([("ip", "10.0.0.1")], rate),
        ([("user", "quota-none")], ("producer_byte_rate", 0.0, True)), ([("user", "a")], ("request_percentage", -1.0, False)),
        ([("user", "quota-a")], ("controller_mutation_rate", 2.5, False)),
    ):  # fmt: skip
        script.each(f"validate {entity} {op}", ALTER_QUOTAS, alter(entity, op, validate_only=True))
        script.each(f"{entity} {op}", ALTER_QUOTAS, alter(entity, op))
    user = {"entity_type": "user", "match_type": 0, "match": "quota-a"}
    script.until(
        48, 1, {"components": [user], "strict": True}, lambda found: bool(found.entries), "what was set"
    )  # fmt: skip
    for components in (
        [], [user], [{**user, "match_type": 1, "match": None}], [{**user, "match_type": 2, "match": None}],
        [user, {"entity_type": "client-id", "match_type": 1, "match": None}], [{**user, "entity_type": "nothing"}],
        [user, user], [{**user, "match_type": 7}], [{**user, "match": None}], [{**user, "match_type": 2}],
        [{"entity_type": "ip", "match_type": 2, "match": None}],
        [{"entity_type": "ip", "match_type": 2, "match": None}, {"entity_type": "user", "match_type": 2, "match": None}],
    ):  # fmt: skip
        for strict in (False, True):
            script.each(f"{components} {strict}", DESCRIBE_QUOTAS, {"components": components, "strict": strict})
    for entity in ([("user", "quota-a")], [("client-id", "quota-b")], [("user", "quota-a"), ("client-id", None)]):
        gone = [(name, 0.0, True) for name in ("producer_byte_rate", "controller_mutation_rate")]
        script.each(f"gone {entity}", ALTER_QUOTAS, alter(entity, *gone))
    script.each("gone", ALTER_QUOTAS, alter([("user", None)], ("consumer_byte_rate", 0.0, True)))
    script.each("gone", ALTER_QUOTAS, alter([("ip", "10.0.0.1")], ("connection_creation_rate", 0.0, True)))


def credentials(script: Recording) -> None:
    def alter(deletions: list[tuple[str, int]], *upserts: tuple[str, int, int]) -> dict[str, Any]:
        gone = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
        made = [
            {"name": name, "mechanism": mechanism, "iterations": count, "salt": b"salt", "salted_password": b"x" * 32}
            for name, mechanism, count in upserts
        ]
        return {"deletions": gone, "upsertions": made}

    for deletions, upserts in (
        ([], [("alice", 1, 4096)]), ([], [("bob", 2, 8192)]), ([], [("alice", 2, 4096)]), ([], [("carol", 1, 4095)]),
        ([], [("carol", 1, 16385)]), ([], [("", 1, 4096)]), ([], [("carol", 3, 4096)]), ([], [("carol", 0, 4096)]),
        ([], [("dave", 1, 4096), ("dave", 1, 4096)]), ([("alice", 1)], [("alice", 1, 4096)]), ([("nobody", 1)], []),
        ([("", 1)], []), ([("alice", 7)], []), ([], []),
    ):  # fmt: skip
        script.each(f"{deletions} {upserts}", ALTER_SCRAM, alter(deletions, *upserts))
    asked = {"users": [{"name": "bob"}, {"name": "alice"}]}
    script.until(50, 0, asked, lambda found: not any(each.error_code for each in found.results), "the credentials")
    for users in (None, [], ["alice"], ["nobody"], ["alice", "alice"], ["bob", "nobody", ""]):
        given = None if users is None else [{"name": name} for name in users]
        script.each(f"{users}", DESCRIBE_SCRAM, {"users": given})
    for name, mechanism in (("alice", 1), ("alice", 2), ("bob", 2)):
        script.each(f"without {name} {mechanism}", ALTER_SCRAM, alter([(name, mechanism)]))
