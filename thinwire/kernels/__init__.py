"""Kernels: the fused passes over memory, in tiers that give the same bits.

`reference` is plain torch and is the definition; `cpu` is C++, compiled for AVX-512, AVX2 or any CPU; `gpu` is
Triton. Ask `select(tensor)` for the fastest tier that can run on a tensor, or name one with `force(...)` or the
variable THINWIRE_KERNELS.
"""

from thinwire.kernels.base import Kernels
from thinwire.kernels.dispatch import force, get, names, select
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

__all__ = ["Blocks", "Kernels", "Kind", "Norm", "Quant", "force", "get", "names", "select"]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)
