"""Contestant: what a replay needs to know of a method: its buckets, their scripts, and when they are waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from thinwire.core.comm import Comm
from thinwire.core.slots import make
from thinwire.engine.plan import chunks, plan_of
from thinwire.planning.replay import Act, Await, Launch, Mark
from thinwire.planning.script import Ask, Script, Work
from thinwire.sync.delta import Delta

if TYPE_CHECKING:
    from thinwire.core.method import Method
    from thinwire.engine.plan import Item, Parcel
    from thinwire.planning.computing import Computing
    from thinwire.planning.record import Recorded

Record = Callable[["Method", "Parcel"], "Recorded"]
Agree = Callable[["Method", "Sequence[Parcel]"], Script]
META = torch.device("meta")


class Sending(NamedTuple):
    """One bucket: the parameters that must be ready, and the pieces of work that carry it.

    What all buckets of a pass agree on comes after the last of them, and has no parameters of its own.
    """

    names: tuple[str, ...]
    scripts: tuple[Script, ...]
    fragment: int = 0


@final
@dataclass(frozen=True)
class Contestant:
    """A method, or one of DDP's ways.

    `overhead` are seconds per step in which the training loop fills buckets, and the part `back` of them those in
    which it copies results back, which the engine does not: its buckets are the gradients.
    """

    name: str
    sendings: tuple[Sending, ...]
    lanes: int
    every: int = 1  # steps from one exchange to the next
    late: int = 0  # steps for which a result may be on its way
    models: bool = False  # whether models are exchanged, after the step
    overhead: float = 0.0
    back: float = 0.0
    beside: float = 1.0
    disturbed: float = 1.0
    memory: int = 0  # bytes that a rank keeps between steps
    instead: tuple[tuple[float, Contestant], ...] = ()  # the share of rounds that are of another kind, and those
    note: str = ""  # what was assumed
    unsuited: str = ""  # why it is not recommended

    @property
    def kinds(self) -> list[tuple[float, Contestant]]:
        """All kinds of rounds, with the share of each; figures of a step are means over them."""
        own = replace(self, instead=())
        return [(1 - sum(share for share, _ in self.instead), own), *self.instead]

    def sent(self, ranks: int) -> float:
        """Bytes per rank and step."""
        return sum(share * sum(ask.sent(ranks) for ask in kind.asks) / kind.every for share, kind in self.kinds)

    @property
    def asks(self) -> list[Ask]:
        """All requests of an exchange."""
        return [
            part for one in self.sendings for script in one.scripts for part in script.parts if isinstance(part, Ask)
        ]

    @property
    def scripts(self) -> list[Script]:
        """All pieces of work of an exchange."""
        return [script for one in self.sendings for script in one.scripts]

    @property
    def codec(self) -> float:
        """Seconds of encoding and decoding per step, if nothing else runs."""
        return sum(share * sum(script.seconds for script in kind.scripts) / kind.every for share, kind in self.kinds)

    @property
    def busy(self) -> float:
        """Seconds per step that the processor spends on something else than training, if nothing else runs."""
        return self.codec + self.overhead

    @property
    def steps(self) -> int:
        """Steps that one `Mark` stands for."""
        return self.every

    def acts(self, computing: Computing, slower: float = 1.0, *, again: bool = False) -> list[Act]:
        """Some steps of the training loop, the last of which is like all that follow.

        One is enough where nothing is left over from the step before; with `again` there are two at least.
        """
        times = self.late + 2 if self.late else 1 + again
        one = self._after_steps(computing, slower) if self.models else self._during_backward(computing, slower)
        return one * times

    def _during_backward(self, computing: Computing, slower: float) -> list[Act]:
        ready = dict(zip((item.name for item in computing.items), computing.ready, strict=True))
        sizes = {item.name: item.numel for item in computing.items}
        acts: list[Act] = []
        at = 0.0

        def trains(seconds: float) -> Work:
            return Work(slower * max(0.0, seconds), computing.cores, trains=True)

        for sending in self.sendings:
            then = max([at, *(ready[name] for name in sending.names)])
            fills = (1 - self.back) * self.overhead * sum(sizes[name] for name in sending.names) / computing.elements
            acts += [trains(then - at), Work(fills, computing.cores), Launch(sending.scripts)]
            at = then
        acts += [trains(computing.backward - at), Await(self.late), Work(self.back * self.overhead, computing.cores)]
        return [*acts, trains(computing.step - computing.backward), Mark()]

    def _after_steps(self, computing: Computing, slower: float) -> list[Act]:
        parts = 1 + max(sending.fragment for sending in self.sendings)
        alone = Work(slower * computing.step * self.every / parts, computing.cores, trains=True)
        acts: list[Act] = []
        for fragment in range(parts):
            acts.append(alone)
            acts += [Launch(sending.scripts) for sending in self.sendings if sending.fragment == fragment]
            acts.append(Await(self.late))
        return [*acts, Work(self.overhead, computing.cores), Mark()]


def of_method(method: Method, items: Sequence[Item], ranks: int, record: Record, agree: Agree) -> Contestant:
    """The engine's own plan of a method: each bucket with what `record` found, and what `agree` found of the pass."""
    check(method)
    plan = plan_of(method, items, None, ())
    found = [(parcel, record(method, parcel)) for parcel in plan.parcels]
    sendings = [
        Sending(tuple(item.name for item in parcel.items), one.scripts, parcel.fragment) for parcel, one in found
    ]
    sync = method.sync
    if not sync.of.models:  # with nothing to agree on, what has been kept is handed over after the last bucket
        owing = [parcel for parcel, one in found if one.owes]
        sendings.append(Sending((), (agree(method, owing),) if owing else ()))
    return Contestant(
        method.id,
        tuple(sendings),
        method.lanes(items[0].device.type),
        every=sync.every,
        late=sync.staleness or 0,
        models=sync.of.models,
        memory=sum(kept(method, parcel, ranks) for parcel in plan.parcels),
    )


def check(method: Method) -> None:
    """Refuse what has no step that everybody takes together."""
    sync = method.sync
    if isinstance(sync.of, Delta) and sync.of.period.at_end:
        raise ValueError(
            f"{method.id} exchanges once, when training ends, and no step of it can be planned; leave it out"
        )
    if method.exchange.served or sync.staleness is None or method.exchange.asynchronous:
        raise ValueError(
            f"{method.id} has no step that all ranks take together, which is what is planned; "
            f'write tw.simulate(tw.method("{method.id}"), ...)'
        )


def kept(method: Method, parcel: Parcel, ranks: int) -> int:
    """Bytes that one rank keeps of a bucket between steps: residuals, predictions."""
    exchange = method.exchange
    if not parcel.compressed:
        return 0
    comm, layout = Comm(0, ranks), parcel.layout
    size = method.overlap.sizes(parcel.items[0].device.type).chunk_mb
    cuts = [(0, layout.numel)] if exchange.whole_tensors else chunks(layout.numel, size)
    total = 0
    for start, stop in cuts:
        piece = layout.cut(start, stop)
        for name, slot in exchange.slots(piece, comm).items():
            total += sum(t.nbytes for t in make({name: slot}, exchange.cover(name, piece, comm), META).values())
    return total
