"""What says who may do what: the authorizer and its settings (Kafka's StandardAuthorizer; facts: kafka-protocol 18.1)."""

from __future__ import annotations

#: The authorizer that keeps its ACLs in the metadata log: the only one that Kafka has, and that compactd knows.
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

_ZOOKEEPER_AUTHORIZERS = ("kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer")


def check_authorizer(class_name: str) -> None:
    """Raises ValueError for the class of an authorizer that cannot be had here."""
    if class_name in ("", STANDARD_AUTHORIZER):
        return
    if class_name in _ZOOKEEPER_AUTHORIZERS:
        raise ValueError(f"kept its ACLs in ZooKeeper and went with Kafka 4.0; write {STANDARD_AUTHORIZER}")
    raise ValueError(f"classes of your own cannot be loaded; write {STANDARD_AUTHORIZER}, or nothing for no authorizer")


def parse_super_users(text: str) -> frozenset[str]:
    """Principals, such as `User:admin;User:CN=a,O=b`: semicolons, since names may hold commas. Raises ValueError."""
    principals = [entry.strip() for entry in text.split(";")]
    for principal in principals:
        if principal and ":" not in principal:
            raise ValueError(
                f"{principal!r} is not of the form TYPE:NAME, such as User:admin; semicolons separate them"
            )
    return frozenset(filter(None, principals))
