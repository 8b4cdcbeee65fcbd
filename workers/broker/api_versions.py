"""ApiVersions: what this broker answers, and the features of the cluster (KIP-35, 511, 584, 1242; facts: kafka-protocol 3)."""

from __future__ import annotations

import re
from typing import Any

from compactd.workers.broker.api_keys import API_VERSIONS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import REGISTRY, RequestHeader, handles

_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

#: Feature levels that Kafka 4.4.0 says it supports.
SUPPORTED_FEATURES: dict[str, tuple[int, int]] = {
    "group.version": (0, 1),
    "kraft.version": (0, 1),
    "metadata.version": (7, 33),
    "share.version": (0, 2),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
    "eligible.leader.replicas.version": (0, 1),
}
#: A feature is announced as far as an API that it stands for is answered: clients act on it (facts: kraft C).
_NEEDS: dict[str, int] = {"group.version": 68, "share.version": 78, "streams.version": 88, "transaction.version": 26}


@handles(API_VERSIONS, 0, 5)
async def api_versions(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Answers in version 0 form where the version is too high; `request` is None then."""
    if request is None:
        own = REGISTRY.apis[API_VERSIONS]
        return {
            "error_code": ErrorCode.UNSUPPORTED_VERSION,
            "api_keys": [{"api_key": API_VERSIONS, "min_version": own.announced_min, "max_version": own.max_version}],
        }
    if header.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not _NAME.fullmatch(name) or not _NAME.fullmatch(version):
            return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": ()}
        header.peer.software_name, header.peer.software_version = name, version
    if header.version >= 5:
        error = _wrong_place(context, request.cluster_id, request.node_id)
        if error:
            return {"error_code": error, "api_keys": ()}
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": [
            {"api_key": api.key, "min_version": api.announced_min, "max_version": api.max_version}
            for api in sorted(REGISTRY.apis.values(), key=lambda api: api.key)
        ],
        **_features(context, header.version),
    }


def _wrong_place(context: Context, cluster_id: str | None, node_id: int) -> ErrorCode:
    if (cluster_id is None) != (node_id == -1):
        return ErrorCode.INVALID_REQUEST
    if cluster_id is not None and (cluster_id != context.image.cluster_id or node_id != context.node_id):
        return ErrorCode.REBOOTSTRAP_REQUIRED
    return ErrorCode.NONE


def _features(context: Context, version: int) -> dict[str, Any]:
    """Supported features (before v4 without those whose lowest level is 0) and finalized ones."""
    served = {name for name in SUPPORTED_FEATURES if _NEEDS.get(name, API_VERSIONS) in REGISTRY.apis}
    return {
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
            if name in served and (version >= 4 or low > 0)
        ],
        "finalized_features_epoch": context.image.metadata_offset,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in sorted(context.image.features.items())
            if level > 0 and name in served
        ],
    }
