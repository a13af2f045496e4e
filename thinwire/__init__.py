"""thinwire: train PyTorch models across slow networks, with fewer bits on the wire."""

from thinwire import compressors, kernels, methods, topology
from thinwire.codecs import BitPack, Codec
from thinwire.comm import Comm, run
from thinwire.compressors import get as compressor
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor, encode_with_feedback
from thinwire.core.config import from_json
from thinwire.core.errors import DeadlockError, PayloadError, PeerError
from thinwire.core.method import METHODS, Method, Overlap
from thinwire.core.payload import Payload
from thinwire.core.types import Context, Key, Layout, State
from thinwire.engine import Wire, attach, ddp_hook
from thinwire.exchange import AllGather, AllReduce, Exchange, ScatterGather
from thinwire.memory import ErrorFeedback, Memory, NoMemory
from thinwire.optim import OneBitAdam
from thinwire.sync import Sync

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "AllGather",
    "AllReduce",
    "BitPack",
    "Channel",
    "Codec",
    "Comm",
    "Compressor",
    "Context",
    "DeadlockError",
    "ErrorFeedback",
    "Exchange",
    "Key",
    "Layout",
    "Memory",
    "Method",
    "NoMemory",
    "OneBitAdam",
    "Overlap",
    "Payload",
    "PayloadError",
    "PeerError",
    "ScatterGather",
    "State",
    "Sync",
    "Wire",
    "attach",
    "compressor",
    "compressors",
    "ddp_hook",
    "encode_with_feedback",
    "from_json",
    "kernels",
    "methods",
    "run",
    "topology",
]
