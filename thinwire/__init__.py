"""thinwire: train PyTorch models across slow networks, with fewer bits on the wire.

`attach`, `ddp_hook` and `fsdp` train, and `save` writes checkpoints; `methods` has one factory per paper, and
`method("qsgd:bits=4")` makes one from its id.
The parts of a method lie in one namespace per axis: `compressors`, `codecs`, `memory`, `exchange`, `server`,
`topology` and `sync`. `simulate` trains on workers and networks that are not there, which `sim` describes; `plan`
says what a method would make of a step. `optim` has the optimizers that some methods need. `integrations` has
adapters to other packages, imported when used.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from thinwire import codecs, compressors, exchange, kernels, memory, methods, optim, server, sim, sync, topology
from thinwire.comm import Comm, run
from thinwire.comm.network import Network
from thinwire.core.by_id import method
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.errors import PayloadError, PeerError
from thinwire.core.files import save
from thinwire.core.method import Method, Overlap
from thinwire.core.payload import Payload
from thinwire.core.types import Context, Key, Layout
from thinwire.core.version import VERSION
from thinwire.engine import Wire, attach, ddp_hook, fsdp
from thinwire.planning import plan
from thinwire.sim import simulate
from thinwire.sync import Sync

__version__ = VERSION
__all__ = [
    "Channel",
    "Comm",
    "Compressor",
    "Context",
    "Key",
    "Layout",
    "Method",
    "Network",
    "Overlap",
    "Payload",
    "PayloadError",
    "PeerError",
    "Sync",
    "Wire",
    "attach",
    "codecs",
    "compressors",
    "ddp_hook",
    "exchange",
    "fsdp",
    "kernels",
    "memory",
    "method",
    "methods",
    "optim",
    "plan",
    "run",
    "save",
    "server",
    "sim",
    "simulate",
    "sync",
    "topology",
]


def __dir__() -> list[str]:
    """What is public: folders that work behind it are not shown."""
    return [*__all__, "__version__"]


if _TYPE_CHECKING:
    from thinwire import integrations as integrations
else:

    def __getattr__(name: str) -> object:
        """`tw.integrations`, which is imported when it is used, and each adapter in it with its framework."""
        if name == "integrations":
            return _import_module("thinwire.integrations")
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}")
