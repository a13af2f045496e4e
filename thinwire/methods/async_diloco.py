"""Asynchronous DiLoCo: workers take local steps and push how far they went; a server takes an outer step with each.

Sends anchor - x once in `every` steps through `compressor` to the ranks that serve the model's shards, and the model
back in float32, or through `down`. Nobody waits for anybody. A worker keeps an anchor; the servers keep the model and
a momentum.

    x = x - eta g(x)                      `every` times, with the worker's own optimizer
    d = anchor - x                        sent to the servers
    v = mu v + d,  c = c - lr (d + mu v)  the servers' outer step: Nesterov's, when d arrives
    x = anchor = c                        the worker goes on from there

With outer_lr = 1 / workers and outer_momentum = 0 it is asynchronous local SGD: the model moves by the mean of all
ways, and with a sparsifier and `feedback` that is Qsparse-local-SGD with workers that exchange at times of their own.

References: Liu, Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato, "Asynchronous local-SGD training for language
modeling", 2024, arXiv 2401.09135, algorithm 1. Basu, Data, Karakus, Diggavi, "Qsparse-local-SGD: distributed SGD with
quantization, sparsification, and local computations", NeurIPS 2019, arXiv 1906.02367, algorithm 2.

Departs from the papers: the model is served in shards, by ranks that train too unless `servers` are set apart. All
workers take as many steps per way, also slow ones, and momentum is not delayed. Workers of Qsparse-local-SGD count
steps in common and exchange in different ones; here every worker counts its own.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.methods._parts import server
from thinwire.server.asgd import Asgd
from thinwire.sync.delta import Delta
from thinwire.sync.outer_steps import Sgd


@method("async-diloco")
def async_diloco(
    every: int = 50,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.0,
    aware: bool = False,
    compressor: str | Compressor = "identity",
    feedback: bool = False,
    down: str | Compressor | None = None,
    servers: int | None = None,
) -> Method:
    """An outer step with every way that arrives.

        every            local steps from one push to the next
        outer_lr         lr, the step size of the outer step
        outer_momentum   mu of the outer step; the momentum of ways that others sent is applied to the next
        aware            whether a way is divided by its age, the updates that its worker had not seen
        compressor       what a way goes through: an id such as "topk:ratio=0.01", or a Compressor of
                         thinwire.compressors; "identity" is float32
        feedback         whether what a push loses is added to the next one
        down             what the model's changes go through on their way down, with error feedback: an id or a
                         Compressor; None sends the model itself in float32
        servers          how many ranks, the last ones, only serve; None: every rank serves a shard beside its
                         training

    >>> async_diloco(every=500).id
    'async-diloco:every=500'
    """
    outer = Delta(outer=Sgd(outer_lr, outer_momentum))
    exchange = server(Asgd(aware), compressor, feedback, down, servers)
    return Method(exchange, Sync(of=outer, every=every, staleness=None))
