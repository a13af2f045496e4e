"""SSP: workers go at their own pace, but nobody is more than s steps ahead of the slowest.

Sends each gradient through `compressor` to the ranks that serve the model's shards, and the model back in float32, or
through `down`. They step with an optimizer like the workers', beside their own training or, with `servers`, alone.

    worker p begins step c_p when c_p - min over q of c_q <= s
    x = x - eta g(what p has read),  in which all updates of steps before c_p - s are

Reference: Ho, Cipar, Cui, et al., "More effective distributed ML via a stale synchronous parallel parameter server",
NeurIPS 2013; the rule is in `thinwire/server/ssp.py`.

Departs from the paper: servers train too, unless `servers` are set apart. A worker's own updates on top of a
snapshot are plain steps of gradient descent, with the weight that they will have in the mean of the step.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.methods._parts import server
from thinwire.server.ssp import Reads, Ssp


@method("ssp")
def ssp(
    staleness: int = 4,
    reads: Reads = "latest",
    cache: bool = False,
    compressor: str | Compressor = "identity",
    feedback: bool = False,
    down: str | Compressor | None = None,
    servers: int | None = None,
) -> Method:
    """Let nobody be more than `staleness` steps ahead.

        staleness    s, the steps that a worker may be ahead
        reads        "latest": the model as it is. "snapshot": the updates of all completed steps, in a fixed order
        cache        whether a worker is sent a model only when its own is too old
        compressor   what a gradient goes through on its way up: an id such as "qsgd:bits=4", or a Compressor of
                     thinwire.compressors; "identity" is float32
        feedback     whether what a push loses is added to the next one
        down         what the model's changes go through on their way down, with error feedback: an id or a
                     Compressor; None sends the model itself in float32
        servers      how many ranks, the last ones, only serve; None: every rank serves a shard beside its training

    >>> ssp(staleness=2).id
    'ssp:staleness=2'
    """
    return Method(server(Ssp(reads, cache), compressor, feedback, down, servers), Sync(staleness=staleness))
