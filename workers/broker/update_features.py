"""UpdateFeatures v0 to v2 (KIP-584, 778, 1022). The catalogue decides; here are the forms of the request's versions."""

from __future__ import annotations

import logging
from typing import Any

from compactd.workers.broker.api_keys import UPDATE_FEATURES
from compactd.workers.broker.asking import Unanswered, ask_catalogue
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.feature_messages import FeaturesResult, FeatureUpdate, UpdateFeatures, UpgradeType

_LOGGER = logging.getLogger(__name__)


@handles(UPDATE_FEATURES, 0, 2)
async def update_features(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """All or none; up to v1 a success names each feature."""
    if not context.part(Authorizer).allows(header, Operation.ALTER, Resource.CLUSTER):
        return _answer(
            FeaturesResult(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, message="Cluster authorization failed."), ()
        )
    arguments = UpdateFeatures(
        updates=tuple(
            FeatureUpdate(name=each.feature, level=each.max_version_level, upgrade_type=_upgrade_type(each))
            for each in request.feature_updates
        ),
        validate_only=getattr(request, "validate_only", False),
    )
    names = tuple(each.feature for each in request.feature_updates)
    if not names:
        return _answer(FeaturesResult(), ())
    result = await ask_catalogue(context, "update_features", arguments, FeaturesResult)
    if isinstance(result, Unanswered):
        result = FeaturesResult(error=result.error, message=result.message)
    if not result.error and not arguments.validate_only:
        _LOGGER.info("features: %s", ", ".join(f"{each.name} is {each.level}" for each in arguments.updates))
    return _answer(result, names)


def _upgrade_type(update: Any) -> int:
    """v0 knew downgrades of one kind only."""
    if hasattr(update, "upgrade_type"):
        return int(update.upgrade_type)
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE


def _answer(result: FeaturesResult, names: tuple[str, ...]) -> dict[str, Any]:
    rows = () if result.error else names
    return {
        "error_code": result.error,
        "error_message": result.message,
        "results": [{"feature": name, "error_code": ErrorCode.NONE, "error_message": "NONE"} for name in rows],
    }
