"""ACLs, sorted so that those of one resource are found at once, and what they say (StandardAuthorizerData; facts:
kafka-protocol 18.1).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from compactd.workers.acl_hosts import AddressRange, host_text, parse_host, parse_range
from compactd.workers.acl_messages import WILDCARD, Operation, PatternType, Permission
from compactd.workers.catalogue_update import AccessRule

#: Matches everybody.
_EVERYBODY = "User:*"

#: What permission for one operation permits beside it. Denial denies nothing else.
_IMPLIED: dict[int, frozenset[int]] = {
    Operation.READ: frozenset({Operation.DESCRIBE}),
    Operation.WRITE: frozenset({Operation.DESCRIBE}),
    Operation.DELETE: frozenset({Operation.DESCRIBE}),
    Operation.ALTER: frozenset({Operation.DESCRIBE}),
    Operation.ALTER_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS}),
}
_NOTHING: frozenset[int] = frozenset()
_ALL_OPERATIONS: frozenset[int] = frozenset(Operation) - {Operation.UNKNOWN, Operation.ANY}


class Decision(NamedTuple):
    """What the ACLs of a resource come to."""

    allowed: bool
    #: The ACL that decided; None: none applies to this client and operation.
    rule: AccessRule | None
    #: There are ACLs of this resource, of whomever.
    has_rules: bool


@dataclass(frozen=True, slots=True)
class _Rule:
    """An ACL with what is asked of it again and again."""

    acl: AccessRule
    allows: bool
    operations: frozenset[int]
    range: AddressRange | None

    @classmethod
    def of(cls, acl: AccessRule) -> _Rule:
        allows = acl.permission == Permission.ALLOW
        operations = _ALL_OPERATIONS
        if acl.operation != Operation.ALL:
            implied = _IMPLIED.get(acl.operation, _NOTHING) if allows else _NOTHING
            operations = implied | {acl.operation}
        addresses = None
        if "/" in acl.host:
            with contextlib.suppress(ValueError):  # it is nobody's address
                addresses = parse_range(acl.host)
        return cls(acl, allows, operations, addresses)

    def is_about(self, host: str) -> bool:
        """Whether it is about clients at this address, written as Java does."""
        acl = self.acl
        if acl.host in (WILDCARD, host):
            return True
        if self.range is None:
            return False
        address = parse_host(host)
        return address is not None and self.range.contains(address)


#: Type and name of a resource, or the beginning of its name; rules by the principals that they are about.
_Place = tuple[int, str]
_ByPrincipal = dict[str, list[_Rule]]


class AccessRules:
    """Some ACLs. They don't change: other ACLs are another object."""

    def __init__(self, acls: Iterable[AccessRule] = ()) -> None:
        self._literal: dict[_Place, _ByPrincipal] = {}
        self._prefixed: dict[_Place, _ByPrincipal] = {}
        #: Lengths of the prefixes that there are, by resource type.
        self._lengths: dict[int, set[int]] = {}
        for acl in acls:
            place = (acl.resource_type, acl.resource_name)
            places = self._literal
            if acl.pattern_type == PatternType.PREFIXED:
                places = self._prefixed
                self._lengths.setdefault(acl.resource_type, set()).add(len(acl.resource_name))
            places.setdefault(place, {}).setdefault(acl.principal, []).append(_Rule.of(acl))

    def _of(self, resource: int, name: str) -> Iterator[_ByPrincipal]:
        """The rules of all patterns that a resource fits."""
        names = (name,) if name == WILDCARD else (name, WILDCARD)
        places = [(self._literal, each) for each in names]
        places += [(self._prefixed, name[:length]) for length in self._lengths.get(resource, ()) if length <= len(name)]
        for rules, each in places:
            found = rules.get((resource, each))
            if found is not None:
                yield found

    def decide(self, principal: str, host: str, operation: int, resource: int, name: str) -> Decision:
        """Denial comes first, then permission; whoever is neither denied nor permitted is not allowed.

        `host`: a client's address, in any form.
        """
        host = host_text(host)
        allowing: AccessRule | None = None
        has_rules = False
        for rules in self._of(resource, name):
            has_rules = True
            for rule in _of_principal(rules, principal):
                if operation in rule.operations and rule.is_about(host):
                    if not rule.allows:
                        return Decision(False, rule.acl, True)
                    allowing = rule.acl
        return Decision(allowing is not None, allowing, has_rules)

    def allows_some(self, principal: str, host: str, operation: int, resource: int) -> bool:
        """Whether there is a resource of this type with which a client may do this (Authorizer.authorizeByResourceType).

        As Kafka finds it: from the patterns that permit, those that patterns of denial cover are taken away. Permission
        for another operation counts for nothing here.
        """
        host = host_text(host)
        allowed: set[tuple[int, str]] = set()
        denied: set[tuple[int, str]] = set()
        for places in (self._literal, self._prefixed):
            for (kind, _), rules in places.items():
                for rule in _of_principal(rules, principal) if kind == resource else ():
                    acl = rule.acl
                    if acl.operation in (operation, Operation.ALL) and rule.is_about(host):
                        (allowed if rule.allows else denied).add((acl.pattern_type, acl.resource_name))
        everything = (PatternType.LITERAL, WILDCARD)
        if everything in denied:
            return False
        if everything in allowed:
            return True
        prefixes = {name for pattern, name in denied if pattern == PatternType.PREFIXED}
        lengths = {len(prefix) for prefix in prefixes}
        return any(
            not (pattern == PatternType.LITERAL and (pattern, name) in denied)
            and not any(name[:length] in prefixes for length in lengths)
            for pattern, name in allowed
        )


def _of_principal(rules: _ByPrincipal, principal: str) -> Iterator[_Rule]:
    yield from rules.get(principal, ())
    yield from rules.get(_EVERYBODY, ())
