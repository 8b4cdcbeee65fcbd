"""Tells a torn tail from damage in the middle of the metadata log: is any intact batch left behind a bad one?"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from compactd.storage import files
from compactd.storage.records.batch import HEADER_SIZE, LOG_OVERHEAD
from compactd.storage.records.crc import crc32c

_HEAD = struct.Struct(">qiiBIh")
_MAGIC_AT = 16
_CRC_FROM = 21
#: No metadata batch is longer.
_LONGEST = 64 << 20


def intact_batch_after(path: Path, position: int, least_offset: int) -> int | None:
    """Base offset of the first intact V2 batch at or behind byte `position`, at whatever byte it starts; None: none is.

    Only batches from `least_offset` on count. Raises StorageIOError.
    """
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            size = file.tell()
            if size - position < HEADER_SIZE:
                return None
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
                return _search(data, position, size, least_offset)
    except OSError as error:
        raise files.failed(path, "read", error) from error


def _search(data: mmap.mmap, position: int, size: int, least_offset: int) -> int | None:
    at = data.find(b"\2", position + _MAGIC_AT)
    while at != -1:
        start = at - _MAGIC_AT
        if start + HEADER_SIZE > size:
            return None
        base_offset, length, epoch, _, crc, attributes = _HEAD.unpack_from(data, start)
        end = start + LOG_OVERHEAD + length
        fits = HEADER_SIZE - LOG_OVERHEAD <= length <= _LONGEST and end <= size
        if fits and base_offset >= least_offset and epoch >= -1 and attributes & ~0x7F == 0:
            with memoryview(data) as view, view[start + _CRC_FROM : end] as covered:
                if crc32c(covered) == crc:
                    return int(base_offset)
        at = data.find(b"\2", at + 1)
    return None
