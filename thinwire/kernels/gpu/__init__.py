"""The Triton tier: the passes of `kernels/base.py` on a GPU, with the bits of the reference tier.

Nothing here waits for the host, and nothing larger than the payload, its scales and eight bytes per 4,096 elements is
allocated. The extra `gpu` brings Triton; without it there is no such tier, and CUDA tensors take the reference.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire.kernels.base import Kernels


def tiers() -> dict[str, Kernels]:
    """The tier, where Triton is installed."""
    if find_spec("triton") is None:
        return {}
    from thinwire.kernels.gpu.tier import GpuKernels  # noqa: PLC0415  (Triton takes a second to import)

    return {"gpu": GpuKernels()}
