"""Changing client quotas: what brokers ask of the catalogue (Kafka's AlterClientQuotas), and whom a change of topics counts for."""

from __future__ import annotations

from compactd.workers.catalogue_struct import Struct


class QuotaChange(Struct, frozen=True):
    """One quota of an entity; None removes it."""

    key: str
    value: float | None


class EntityChange(Struct, frozen=True):
    """`entity`: (type, name or None for the default) in any order, each type once."""

    entity: tuple[tuple[str, str | None], ...]
    changes: tuple[QuotaChange, ...]


class AlterClientQuotas(Struct, frozen=True):
    """`unknown_hosts`: names of ip entities that are no address and have none."""

    entities: tuple[EntityChange, ...]
    unknown_hosts: tuple[str, ...] = ()
    validate_only: bool = False


class QuotaResult(Struct, frozen=True):
    entity: tuple[tuple[str, str | None], ...]
    error: int = 0
    message: str | None = None


class QuotaResults(Struct, frozen=True):
    """One for each entity, in the order in which they are first named."""

    results: tuple[QuotaResult, ...]


class Mutation(Struct, frozen=True):
    """Who changes topics, for the controller_mutation_rate that he may have. `strict`: what is over the quota is refused;
    else it is done, and the client is told to keep still (KIP-599)."""

    user: str
    client_id: str
    strict: bool


#: Operations of a CatalogueChange: arguments and results.
OPERATIONS: dict[str, tuple[type[Struct], type[Struct]]] = {"alter_client_quotas": (AlterClientQuotas, QuotaResults)}
