"""What goes over very many bytes, in Rust where that was built, in plain Python where it was not.

the two passes of a clean    interface; native_adapter, reference
batches of producers         validating
the place of a fetch         lookup; of a time: timestamps
recovery's scan              scanning
"""

from __future__ import annotations

import os

from compactd.storage.kernel.interface import Kernel

__all__ = ["active_kernel", "native_kernel", "reference_kernel"]


def native_kernel() -> Kernel | None:
    """The Rust kernel, or None where the extension was not built."""
    try:
        from compactd.storage.kernel import native_adapter  # noqa: PLC0415
    except ImportError:
        return None
    return native_adapter.KERNEL


def reference_kernel() -> Kernel:
    """The plain-Python kernel: the executable specification."""
    from compactd.storage.kernel import reference  # noqa: PLC0415

    return reference.KERNEL


def active_kernel() -> Kernel:
    """The kernel that cleans here. COMPACTD_KERNEL=reference chooses the specification, for tests and comparison."""
    if os.environ.get("COMPACTD_KERNEL") == "reference":
        return reference_kernel()
    return native_kernel() or reference_kernel()
