"""What a disk would hold, had everything stopped there: an image behind every call of the file layer.

    layer = ImagingLayer(log_dir, into)
    with files.replaced(layer):
        layer.begin(lambda: len(acknowledged))
        ...work...
    for image in layer.images:
        image.restore(target, None)          # the process was killed
        image.restore(target, Lost.ALL)      # the power failed: nothing is left that was not fsynced
        image.restore(target, 17)            # the power failed: some of that is left, drawn with this seed

One run gives all its ends; what the run's own threads do goes on meanwhile, but no call of theirs.
"""

from __future__ import annotations

import copy
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from tests.file_faults import Call, FaultyLayer

_T = TypeVar("_T")


class Lost(Enum):
    """Of what was not fsynced."""

    ALL = 1


@dataclass(frozen=True)
class Image:
    """The disk behind one call."""

    call: str
    #: What `begin`'s callable said then.
    known: Any
    _files: Path
    _root: Path
    _layer: FaultyLayer

    def restore(self, target: Path, lost: Lost | int | None) -> None:
        """Puts the tree that is left at `target`, where nothing may be yet."""
        shutil.copytree(self._files, target)
        if lost is not None:
            layer = copy.deepcopy(self._layer)
            layer._directories = {
                str(target / Path(path).relative_to(self._root)): directory
                for path, directory in layer._directories.items()
                if Path(path).is_relative_to(self._root)
            }
            layer.lose_unsynced(None if lost is Lost.ALL else lost)


class ImagingLayer(FaultyLayer):
    """Keeps an image of `root` in `into` behind every call that changes something of it, once told to begin."""

    def __init__(self, root: Path, into: Path) -> None:
        super().__init__()
        self.images: list[Image] = []
        self._root, self._into = root, into
        self._known: Callable[[], Any] | None = None
        self._lock = threading.RLock()

    def begin(self, known: Callable[[], Any]) -> None:
        """From now on; each image notes what `known` says."""
        self._known = known

    def end(self) -> None:
        self._known = None

    def _call(self, call: Call, run: Callable[[], _T], counted: bool = True) -> _T:
        with self._lock:
            result = super()._call(call, run, counted)
            # What only becomes known of a file, or closes it, leaves the disk as it was.
            if counted and self._known is not None and call.name not in ("open_existing", "open_lock", "close"):
                self._take(call, self._known())
            return result

    def _take(self, call: Call, known: Any) -> None:
        kept = self._into / f"{len(self.images):04}"
        shutil.copytree(self._root, kept)
        layer = FaultyLayer()
        layer._directories, layer._pending = copy.deepcopy((self._directories, self._pending))
        self.images.append(Image(str(call), known, kept, self._root, layer))
