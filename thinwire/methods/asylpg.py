"""AsyLPG: an asynchronous server for SVRG, with models and gradients in low precision.

Sends b bits per element and 32 up for each step, the change of a batch's gradient since a snapshot (with `ratio`:
that share of the elements, b bits and a place each); down, the model in the fewest bits, from `model_bits` on, that
keep its error below a share of the way from the snapshot. Once per epoch, the snapshot and the full gradient travel
in float32. Workers keep the snapshot; rank 0 keeps the model and the full gradient, and steps.

    a = grad_B(Q(x)) - grad_B(y);    u = Q(a) + full gradient at y;    x = prox(x - lr u)
    E|Q(x) - x|^2 <= mu |x - y|^2;    next y = x after `updates` steps

A step computes two gradients of its batch: write `optimizer.step(closure)`, where closure() sets the gradients to
zero, computes the loss of the batch, calls backward and returns the loss. The first `batches` steps of a worker in
every epoch make its full gradient: in them, closures go once over the worker's data, in batches of equal size.

With full gradients of strongly convex functions it converges to the optimum at a linear rate, as SVRG does, though
everything between two snapshots is quantised.

Reference: Yu, Wu, Huang, "Double quantization for communication-efficient distributed optimization", NeurIPS 2019,
arXiv 1805.10111, algorithms 1 (AsyLPG), 2 (Sparse-AsyLPG) and 3 (Acc-AsyLPG).

Departs from the paper: `around`. With `accelerated`, the first gradient of each worker in an epoch is at the snapshot
y, where it computed its part of the full gradient; algorithm 3 takes it at x = theta z + (1 - theta) y. Pushes on
their way when an epoch ends are dropped; the paper does not say. See also thinwire.compressors.sparse_precision.
"""

from __future__ import annotations

from thinwire.compressors.identity import Identity
from thinwire.compressors.low_precision import LowPrecision
from thinwire.compressors.sparse_precision import SparsePrecision
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.core.schedule import Sync
from thinwire.exchange.server import Server
from thinwire.server.asylpg import AsyLpg

NOTE = "for optimizer.step(closure): a step computes two gradients of its batch, and `batches` steps a full gradient"


@method("asylpg", Recipe(momentum=0.0, note=NOTE))
def asylpg(
    bits: int | None = 8,
    model_bits: int | None = 8,
    mu: float = 0.1,
    batches: int = 1,
    updates: int = 100,
    ratio: float | None = None,
    around: bool = False,
    accelerated: bool = False,
    servers: int | None = None,
) -> Method:
    """SVRG on a server, in `bits` bits up and at least `model_bits` down.

        bits          b, bits per element of a gradient; None sends float32
        model_bits    the fewest bits per element of a model; None sends float32
        mu            the error of a model may be this share of its squared distance from the snapshot
        batches       steps of a worker that make its full gradient: the batches of its data
        updates       the server's steps between two snapshots
        ratio         Sparse-AsyLPG: the expected share of a gradient's elements that are sent; None sends all
        around        whether models are quantised around the snapshot, so that `model_bits` are enough to the end
        accelerated   Acc-AsyLPG: the server steps with momentum
        servers       1: the last rank only serves; None: rank 0 serves beside its training

    >>> asylpg(updates=200, ratio=0.1).id
    'asylpg:updates=200,ratio=0.1'
    """
    if bits is None and ratio is not None:
        raise ValueError(f"asylpg(bits=None, ratio={ratio}) rounds what is left of a gradient; write bits=8")
    compressor: Compressor = Identity() if bits is None else LowPrecision(bits)
    if bits is not None and ratio is not None:
        compressor = SparsePrecision(ratio, bits)
    rule = AsyLpg(model_bits, mu, batches, updates, around, accelerated)
    return Method(Server(Channel(compressor), rule, servers=servers), Sync(staleness=None))
