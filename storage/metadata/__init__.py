"""KRaft metadata records: topic ids, configs and deletions out of a broker's own log; records of the internal topics."""

from compactd.storage.metadata.cluster import ClusterMetadata, PartitionState, read_cluster_metadata
from compactd.storage.metadata.decode import decode_record

__all__ = ["ClusterMetadata", "PartitionState", "decode_record", "read_cluster_metadata"]
