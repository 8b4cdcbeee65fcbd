"""ACLs as the protocol has them, and what a broker worker asks of the catalogue about them (facts: kafka-protocol 0.1, 18).

`AccessRule` (workers.messages) is an ACL with its id, as brokers are told it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol, TypeVar

from compactd.workers.catalogue_struct import Struct


class Operation(IntEnum):
    """Kafka's AclOperation."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Resource(IntEnum):
    """Kafka's ResourceType, of ACLs."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """What the name of a resource in an ACL stands for. MATCH is of filters: all patterns that apply to the name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Kafka's AclPermissionType."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


#: The one name of a resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"
#: As the name of a LITERAL pattern, as a host, and as the name of a principal: any.
WILDCARD = "*"

_Enumeration = TypeVar("_Enumeration", bound=IntEnum)


def member(kind: type[_Enumeration], code: int) -> _Enumeration:
    """The member of this code; UNKNOWN for one that Kafka 4.4 does not know."""
    try:
        return kind(code)
    except ValueError:
        return kind(0)


class AclLike(Protocol):
    """An ACL, with an id or without."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def pattern_type(self) -> int: ...
    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission(self) -> int: ...


class Acl(Struct, frozen=True):
    """An ACL as a client writes it: any numbers."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(Struct, frozen=True):
    """Which ACLs are meant: None and ANY leave a field out of account (AclBindingFilter)."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: AclLike) -> bool:
        """Whether it is one of those. A filter with unknown numbers matches nothing."""
        return (
            self.resource_type in (Resource.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: AclLike) -> bool:
        name = self.resource_name
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)


class CreateAcls(Struct, frozen=True):
    """All of these, each by itself; those that can be created are created in one batch."""

    acls: tuple[Acl, ...]


class AclResult(Struct, frozen=True):
    error: int = 0
    message: str | None = None


class AclResults(Struct, frozen=True):
    """One for each ACL, in the order asked. An ACL that is there already is no error."""

    results: tuple[AclResult, ...]


class DeleteAcls(Struct, frozen=True):
    """What any of the filters matches, all in one batch."""

    filters: tuple[AclFilter, ...]


class AclDeletion(Struct, frozen=True):
    """What one filter matched, which is gone; or an error."""

    acls: tuple[Acl, ...] = ()
    error: int = 0
    message: str | None = None


class AclDeletions(Struct, frozen=True):
    """One for each filter, in the order asked."""

    results: tuple[AclDeletion, ...]


OPERATIONS: dict[str, tuple[type[Struct], type[Struct]]] = {
    "create_acls": (CreateAcls, AclResults),
    "delete_acls": (DeleteAcls, AclDeletions),
}
