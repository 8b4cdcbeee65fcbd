"""Whether a client may do what it asks (Kafka's StandardAuthorizer; facts: kafka-protocol 18).

    if not context.part(Authorizer).allows(header, Operation.WRITE, Resource.TOPIC, "orders"): ...

Only what clients ask is looked at: what the broker does on its own needs nobody's leave.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from compactd.config.authorization import parse_super_users
from compactd.workers.acl_messages import CLUSTER_NAME, Operation, Resource
from compactd.workers.broker.security.access_rules import AccessRules, Decision
from compactd.workers.catalogue_update import AccessRule

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context
    from compactd.workers.broker.requests import RequestHeader

__all__ = ["CLUSTER_NAME", "NOT_ASKED", "Authorizer", "Operation", "Resource"]

_T = TypeVar("_T")
_LOGGER = logging.getLogger(__name__)

#: Authorized operations, where the client did not want to know.
NOT_ASKED: Final = -(2**31)

#: Operations that a resource knows, as clients are told (AclEntry.supportedOperations).
_SUPPORTED: dict[Resource, tuple[Operation, ...]] = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
}

_EVERYTHING = {resource: sum(1 << each for each in operations) for resource, operations in _SUPPORTED.items()}

#: Decisions that are remembered; then all are made anew. Those about longer names are not remembered.
_MOST_DECISIONS = 50_000
_LONGEST_NAME = 300
#: The same refusal is logged once in this time; and so many in a second at most, whoever is refused what.
_LOG_SECONDS = 60.0
_MOST_LOGGED = 100
#: In place of a name: some resource of the type. No client can send this one: it is nothing that UTF-8 could write.
_SOME = "\ud800"
#: A name with which Kafka finds out who may do everything.
_ANY_NAME = "hardcode"

#: Principal, address, operation, type and name of the resource.
_Question = tuple[str, str, Operation, Resource, str]


class Authorizer:
    """`context.part(Authorizer)`. Without authorizer.class.name everybody may do everything."""

    def __init__(self, context: Context) -> None:
        config = context.config
        #: Whether there is anything to ask about.
        self.enabled = bool(config.authorizer_class_name)
        self._super_users = parse_super_users(config.super_users)
        self._without_acls = config.allow_everyone_if_no_acl_found
        self._image = context.image
        self._time = context.loop.time
        self._acls: tuple[AccessRule, ...] | None = None
        self._rules = AccessRules()
        self._decided: dict[_Question, bool] = {}
        #: Of questions about ANY operation: bits.
        self._operations: dict[_Question, int] = {}
        self._logged: dict[_Question, float] = {}
        #: The second that is counted, what was logged in it, and what was not.
        self._second = 0
        self._told = self._untold = 0
        #: Questions since it was told last: answered with no, and with yes.
        self._answered = [0, 0]

    def take(self) -> dict[str, int]:
        """How often clients were allowed something, and how often not, which it forgets; and how many ACLs there are now."""
        (denied, allowed), self._answered = self._answered, [0, 0]
        return {"allowed": allowed, "denied": denied, "acls": len(self._image.acls)}

    def introduce(self) -> None:
        """Says what it goes by, when a broker starts. ACLs that nobody goes by, as of another broker's disks, are a warning."""
        count = len(self._image.acls)
        if self.enabled:
            users = ",".join(sorted(self._super_users)) or "nobody"
            fields = {"super_users": users, "acls": count, "everyone_without_acls": self._without_acls}
            _LOGGER.info("clients may do what ACLs allow", extra={"fields": fields})
        elif count:
            text = "nobody goes by the ACLs of the catalogue: authorizer.class.name is not set, everybody may do everything"
            _LOGGER.warning(text, extra={"fields": {"acls": count}})

    def allows(
        self,
        header: RequestHeader,
        operation: Operation,
        resource: Resource,
        name: str = CLUSTER_NAME,
        *,
        log: bool = True,
    ) -> bool:
        """Whether the client that sent `header` may do `operation` on the resource of this type and name.

        `log` False: it did not ask for it (a filter, or what would do as well), so that a refusal is no news.
        """
        if not self.enabled:
            return True
        peer = header.peer
        question = (peer.principal, peer.host, operation, resource, name)
        if self._image.acls is not self._acls:
            self._renew()
        allowed = self._decided.get(question)
        if allowed is None:
            allowed = self._decide(question)
            _remember(self._decided, question, allowed)
        self._answered[allowed] += 1
        if log and not allowed:
            self._log_refusal(question, header)
        return allowed

    def allows_some(self, header: RequestHeader, operation: Operation, resource: Resource) -> bool:
        """Whether the client may do `operation` on some resource of this type (KIP-679)."""
        return self.allows(header, operation, resource, _SOME)

    def operations(self, header: RequestHeader, resource: Resource, name: str = CLUSTER_NAME) -> int:
        """What the client may do with a resource: bits, by the numbers of operations (KIP-430)."""
        if not self.enabled:
            return _EVERYTHING[resource]
        peer = header.peer
        if self._image.acls is not self._acls:
            self._renew()
        question = (peer.principal, peer.host, Operation.ANY, resource, name)
        found = self._operations.get(question)
        if found is None:
            found = sum(
                1 << operation
                for operation in _SUPPORTED[resource]
                if self._decide((peer.principal, peer.host, operation, resource, name))
            )
            _remember(self._operations, question, found)
        return found

    def cluster_operations(self, header: RequestHeader) -> int:
        """What the client may do with the cluster: nothing that is told to whom may not describe it."""
        if not self.allows(header, Operation.DESCRIBE, Resource.CLUSTER):
            return 0
        return self.operations(header, Resource.CLUSTER)

    # ---- deciding

    def _renew(self) -> None:
        self._acls = self._image.acls
        self._rules = AccessRules(self._acls)
        self._decided.clear()
        self._operations.clear()
        self._logged.clear()

    def _decide(self, question: _Question) -> bool:
        principal, host, operation, resource, name = question
        if principal in self._super_users:
            return True
        if name == _SOME:
            # Who may do it with whichever resource may do it with this one.
            everywhere = self._rules.decide(principal, host, operation, resource, _ANY_NAME)
            return self._allowed(everywhere) or self._rules.allows_some(principal, host, operation, resource)
        return self._allowed(self._rules.decide(principal, host, operation, resource, name))

    def _allowed(self, decision: Decision) -> bool:
        return decision.allowed or (self._without_acls and not decision.has_rules)

    def _log_refusal(self, question: _Question, header: RequestHeader) -> None:
        principal, host, operation, resource, name = question
        shown = (principal, host, operation, resource, name[:_LONGEST_NAME])
        now = self._time()
        if now - self._logged.get(shown, -_LOG_SECONDS) < _LOG_SECONDS or not self._may_log(int(now)):
            return
        _remember(self._logged, shown, now)
        rule = None if name == _SOME else self._rules.decide(*question).rule
        _LOGGER.info(
            "%s may not %s",
            principal,
            operation.name,
            extra={
                "fields": {
                    "host": host,
                    "resource": resource.name,
                    "name": "any" if name == _SOME else shown[-1],
                    "api": header.api_key,
                    "client_id": header.client_id[:_LONGEST_NAME],
                    "because": "no ACL allows it" if rule is None else f"ACL {rule.id} denies it",
                }
            },
        )

    def _may_log(self, second: int) -> bool:
        """One request can name a hundred thousand topics."""
        if second != self._second:
            if self._untold:
                _LOGGER.info("%d more refusals were not logged: there were too many at once", self._untold)
            self._second, self._told, self._untold = second, 0, 0
        if self._told >= _MOST_LOGGED:
            self._untold += 1
            return False
        self._told += 1
        return True


def _remember(known: dict[_Question, _T], question: _Question, answer: _T) -> None:
    if len(question[-1]) > _LONGEST_NAME:
        return
    if len(known) >= _MOST_DECISIONS:
        known.clear()
    known[question] = answer
