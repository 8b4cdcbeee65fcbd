"""What the catalogue says of clients, as brokers are told it: quotas, SCRAM credentials, ACLs."""

from __future__ import annotations

import base64

from compactd.storage.metadata.image import MetadataImage
from compactd.workers.catalogue_update import AccessRule, ClientQuota, ScramCredential


def quotas_of(image: MetadataImage) -> tuple[ClientQuota, ...]:
    """All client quotas."""
    return tuple(ClientQuota(entity, dict(values)) for entity, values in image.quotas.items())


def credentials_of(image: MetadataImage) -> tuple[ScramCredential, ...]:
    """All SCRAM credentials; nobody else is given them."""
    return tuple(
        ScramCredential(
            data["name"],
            data["mechanism"],
            base64.b64decode(data["salt"]),
            base64.b64decode(data["storedKey"]),
            base64.b64decode(data["serverKey"]),
            data["iterations"],
        )
        for data in image.scram.values()
    )


def acls_of(image: MetadataImage) -> tuple[AccessRule, ...]:
    """All ACLs."""
    return tuple(
        AccessRule(
            data["id"],
            data["resourceType"],
            data["resourceName"],
            data["patternType"],
            data["principal"],
            data["host"],
            data["operation"],
            data["permissionType"],
        )
        for data in image.acls.values()
    )
