"""What factories share: parts by id or as objects, ways among all ranks, and the way to a server."""

from __future__ import annotations

from thinwire import compressors
from thinwire.compressors.identity import Identity
from thinwire.compressors.shrunk import Shrunk
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.exchange import Exchange
from thinwire.core.gaussian import MATRIX, lost
from thinwire.core.memory import NoMemory
from thinwire.core.method import Method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.named import Named, through
from thinwire.exchange.server import Server
from thinwire.memory import ErrorFeedback
from thinwire.server.easgd import Easgd
from thinwire.server.rule import Rule
from thinwire.sync.delta import Delta
from thinwire.sync.merges import Elastic
from thinwire.sync.outer_steps import Sgd

MEAN = Sgd(lr=1.0, momentum=0.0, nesterov=False)
"""The outer step after which the anchor is the mean of the models."""
MILD = 0.1  # of the squared length: an unbiased compressor that loses less needs no shrinking


def made(compressor: str | Compressor) -> Compressor:
    """A compressor, or that of an id."""
    return compressor if isinstance(compressor, Compressor) else compressors.get(compressor)


def contraction(compressor: str | Compressor) -> Compressor:
    """The same, divided by 1 + omega where it is unbiased and loses much: error feedback needs contractions."""
    c = made(compressor)
    return Shrunk(c) if c.unbiased and lost(c, MATRIX) > MILD else c


def uplink(compressor: str | Compressor, *, feedback: bool) -> Channel:
    """What gradients go through on their way to a server."""
    return Channel(made(compressor), ErrorFeedback() if feedback else NoMemory())


def is_exact(compressor: str | Compressor) -> bool:
    """Whether nothing is lost."""
    return made(compressor) == Identity()


def among_all(name: str, compressor: str | Compressor, exchange: Named, *, feedback: bool) -> Exchange:
    """The mean over all ranks: summed in float32, or compressed through the named exchange."""
    if is_exact(compressor):
        return AllReduce()
    if feedback:
        return through(name, exchange, Channel(contraction(compressor), ErrorFeedback()))
    return through(name, exchange, Channel(made(compressor)))


def springs(name: str, beta: float) -> Delta:
    """Ranks and a centre that pull each other: a = beta / n."""
    if not 0 <= beta <= 1:
        raise ValueError(f"{name}(beta={beta}) takes the centre beyond the mean of the ranks; write 0 <= beta <= 1")
    return Delta(Sgd(beta, 0.0), Elastic(beta))


def served_springs(alpha: float, every: int, compressor: str | Compressor, servers: int | None) -> Method:
    """The same with a centre on servers, which each worker meets by itself."""
    rule = Easgd(alpha, differences=not is_exact(compressor))
    return Method(server(rule, compressor, servers=servers), Sync(of=Param(), every=every, staleness=None))


def oldest(name: str, tau: int) -> int:
    """The age that a report may reach before it is waited for."""
    if tau < 1:
        raise ValueError(f"{name}(tau={tau}): write tau=1 to wait for all workers in every round, or more")
    return tau - 1


def server(
    rule: Rule,
    compressor: str | Compressor,
    feedback: bool = False,
    down: str | Compressor | None = None,
    servers: int | None = None,
) -> Server:
    """Servers with a rule: gradients go up through `compressor`, models come down in float32 or through `down`.

    What the way down loses is always made up for, by a memory at the server for each worker.
    """
    up = uplink(compressor, feedback=feedback)
    return Server(up, rule, None if down is None else Channel(contraction(down), ErrorFeedback()), servers)
