"""The catalogue as brokers are told it: all of it, or what a change came to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from compactd.coordinator.catalogue.client_rules import acls_of, credentials_of, quotas_of
from compactd.coordinator.catalogue.placement import worker_of
from compactd.coordinator.catalogue.places import Places
from compactd.storage.metadata.delta import MetadataDelta
from compactd.storage.metadata.image import MetadataImage, Resource, TopicImage
from compactd.storage.metadata.record_types import KRAFT_VERSION
from compactd.workers.catalogue_messages import ResourceType
from compactd.workers.catalogue_update import CataloguePartition, CatalogueTopic, CatalogueUpdate
from compactd.workers.message import Endpoint

#: (node id, host, port) by worker number, and what clients of each listener are told in their place.
Nodes = tuple[tuple[int, str, int], ...]
Endpoints = tuple[tuple[Endpoint, ...], ...]


@dataclass(frozen=True, slots=True)
class Teller:
    """Tells of one image."""

    image: MetadataImage
    places: Places
    cluster_id: str
    node_id: int
    workers: int
    nodes: Nodes
    endpoints: Endpoints

    def everything(self) -> CatalogueUpdate:
        """The whole catalogue."""
        image = self.image
        return CatalogueUpdate(
            full=True,
            metadata_offset=image.offset - 1,
            cluster_id=self.cluster_id,
            topics=tuple(self._topic(topic) for topic in image.topics.values()),
            broker_configs=self._configs(ResourceType.BROKER, image.configs),
            group_configs=self._configs(ResourceType.GROUP, image.configs),
            client_metrics=self._configs(ResourceType.CLIENT_METRICS, image.configs),
            features=self.features(),
            nodes=self.nodes,
            endpoints=self.endpoints,
            quotas=quotas_of(image),
            credentials=credentials_of(image),
            acls=acls_of(image),
        )

    def changes(self, delta: MetadataDelta, before: MetadataImage) -> CatalogueUpdate:
        """What changed since `before`. A resource whose settings have all been removed is there with an empty mapping."""
        image, changed = self.image, delta.changed_configs
        return CatalogueUpdate(
            full=False,
            metadata_offset=image.offset - 1,
            cluster_id=self.cluster_id,
            topics=tuple(self._topic(image.topics[name]) for name in sorted(delta.changed_topics)),
            deleted=tuple(sorted(set(delta.deleted_topics.values()))),
            broker_configs=self._configs(ResourceType.BROKER, changed),
            group_configs=self._configs(ResourceType.GROUP, changed),
            client_metrics=self._configs(ResourceType.CLIENT_METRICS, changed),
            features=self.features(),
            nodes=self.nodes,
            endpoints=self.endpoints,
            quotas=None if image.quotas is before.quotas else quotas_of(image),
            credentials=None if image.scram is before.scram else credentials_of(image),
            acls=None if image.acls is before.acls else acls_of(image),
        )

    def topics(self, names: Collection[str]) -> CatalogueUpdate:
        """These topics as they are now."""
        return CatalogueUpdate(
            full=False,
            metadata_offset=self.image.offset - 1,
            cluster_id=self.cluster_id,
            topics=tuple(self._topic(self.image.topics[name]) for name in sorted(names)),
            features=self.features(),
            nodes=self.nodes,
        )

    def features(self) -> dict[str, int]:
        """Finalized levels, that of kraft.version where the log names one."""
        level = self.image.kraft_version
        return {**self.image.features, **({KRAFT_VERSION: level} if level else {})}

    def _configs(self, wanted: ResourceType, resources: Iterable[Resource]) -> dict[str, dict[str, str]]:
        """Of those `resources` that are of a kind: name to settings."""
        configs = self.image.configs
        return {name: dict(configs.get((kind, name), {})) for kind, name in resources if kind == wanted}

    def _topic(self, topic: TopicImage) -> CatalogueTopic:
        return CatalogueTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                CataloguePartition(
                    partition=number,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=state.partition_epoch,
                    log_dir=self.places.path_of((topic.topic_id, number)),
                    worker=worker_of(topic.topic_id, number, self.workers),
                    online=state.leader == self.node_id,
                )
                for number, state in sorted(topic.partitions.items())
                if self.node_id in state.replicas
            ),
            configs=dict(self.image.topic_configs(topic.name)),
        )
