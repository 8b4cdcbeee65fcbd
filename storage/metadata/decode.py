"""Which decoder reads the records of which internal topic, for `compactd dump`."""

from __future__ import annotations

from typing import Any

from compactd.storage.metadata.offsets import decode_offsets_record
from compactd.storage.metadata.records import decode_control_record, decode_metadata_record
from compactd.storage.metadata.share import decode_share_record
from compactd.storage.metadata.transactions import decode_transaction_record
from compactd.storage.records.varint import MalformedError

CLUSTER_METADATA = "__cluster_metadata"
CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"


def decode_record(
    topic: str, key: bytes | None, value: bytes | None, *, control: bool = False, secrets: bool = False
) -> dict[str, Any] | None:
    """A record of an internal topic as names and values; None for any other topic.

    `control`: the record comes from a control batch. `secrets`: show SCRAM keys and password settings, hidden otherwise.
    Bytes that don't follow their format give `{"error": reason}`, never an exception.
    """
    try:
        if control:
            return decode_control_record(key or b"", value)
        if topic == CLUSTER_METADATA:
            return decode_metadata_record(key, value, secrets)
        if topic == CONSUMER_OFFSETS:
            return decode_offsets_record(key, value)
        if topic == TRANSACTION_STATE:
            return decode_transaction_record(key, value)
        if topic == SHARE_GROUP_STATE:
            return decode_share_record(key, value)
    except MalformedError as fault:
        return {"error": str(fault)}
    return None
