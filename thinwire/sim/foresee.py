"""foresee: how long a step takes on many workers, from shapes alone.

The bucket plan, the chunks, the lanes and the messages are those of `attach`; only numbers are missing. Computing
takes the times of a `Load`, encoding and decoding those of `Costs`, messages those of a `Network`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from thinwire.comm.clock import VirtualClock
from thinwire.comm.network import Interfaces, Network
from thinwire.core.clock import Span
from thinwire.core.config import check_choice
from thinwire.core.errors import PeerError
from thinwire.core.given import is_number
from thinwire.core.trace import SIMULATED, write_trace
from thinwire.engine.legal import check_method
from thinwire.engine.misuse import check_method_type
from thinwire.engine.plan import plan_of
from thinwire.sim.arguments import check_arguments
from thinwire.sim.costs import Costs
from thinwire.sim.forward import Forward, in_order
from thinwire.sim.load import Load
from thinwire.sim.neighbours import Neighbours, gossips
from thinwire.sim.planned import cost, planned
from thinwire.sim.player import Mark, Player, Stage
from thinwire.sim.script import script
from thinwire.sim.together import Together, fits
from thinwire.sim.turns import turns

if TYPE_CHECKING:
    from thinwire.comm.stragglers import Stragglers
    from thinwire.core.method import Method
    from thinwire.engine.plan import Plan
    from thinwire.sim.models import Weight

STEPS = 10
BY_MESSAGE = 32  # workers up to which every request is an event of the clock


@final
@dataclass(frozen=True)
class Forecast:
    """What `foresee` returns."""

    workers: int
    ends: tuple[tuple[float, ...], ...]  # by step, then by worker: when it had ended the step; NaN if it had died
    bytes_sent: int  # by all workers in all steps
    messages: int
    coded: float  # seconds of encoding and decoding, by all workers in all steps
    bits: dict[str, float]  # per element, by encoder, where a size is an estimate
    marks: tuple[Mark, ...] = ()
    stopped: str = ""  # what PeerError says, where a failure ended training

    @property
    def seconds(self) -> float:
        """Until the last worker had ended its last step."""
        return max((end for end in self.ends[-1] if not math.isnan(end)), default=0.0) if self.ends else 0.0

    @property
    def steps(self) -> list[float]:
        """How long each step took each worker, in order of time."""
        before = (0.0,) * self.workers
        out = []
        for ends in self.ends:
            out += [end - start for start, end in zip(before, ends, strict=True) if not math.isnan(end)]
            before = ends
        return out

    def trace(self, path: Path | str, beside: Path | str | None = None) -> None:
        """Write what was done when as a trace file, for Perfetto, with the workers of another file `beside` it.

        `foresee(marks=True)` keeps what was done. The other file may come from `wire.trace(path)` of a real run.
        """
        if not self.marks:
            raise ValueError("this forecast has kept no marks; write foresee(..., marks=True).trace(path)")
        spans: dict[int, list[Span]] = {}
        for mark in self.marks:
            spans.setdefault(mark.rank, []).append(Span(mark.what, mark.start, mark.stop, mark.bucket, mark.chunk))
        write_trace(path, spans, beside, SIMULATED)

    def quantile(self, q: float) -> float:
        """Of the seconds of a step, over steps and workers."""
        if not is_number(q) or q > 1:
            raise ValueError(f"quantile({q!r}): write a share from 0 to 1, such as quantile(0.5) for the median")
        ordered = sorted(self.steps)
        if not ordered:
            return math.nan
        return ordered[min(len(ordered) - 1, math.floor(q * len(ordered)))]

    @property
    def step(self) -> float:
        """The mean seconds of a step: local steps, and those in which workers meet."""
        return self.seconds / len(self.ends) if self.ends else math.nan


def foresee(
    method: Method,
    load: Load | str | Sequence[Weight],
    workers: int,
    *,
    steps: int = STEPS,
    network: Network | None = None,
    costs: Costs | None = None,
    plan: Plan | None = None,
    min_size: int | None = None,
    stragglers: Stragglers | None = None,
    failures: Mapping[int, float] | None = None,
    drop_dead: bool = False,
    seed: int = 0,
    marks: bool = False,
    by_message: bool | None = None,
    into_forward: Literal["ready", "need"] | None = None,
) -> Forecast:
    """Steps of `method` on `workers` workers, each with the same load: a `Load`, the name of a model, or its
    weights.

    `plan` says which tensors travel together; without it, the plan that `attach` would make. The method is past its
    warm-up, and memories that may skip an upload send it. With `marks` the result says what was done when.

    Above 32 workers, rounds in which all ranks meet are computed for all of them at once, and messages to neighbours
    without the clock. `by_message=True` runs every request on the clock, which gives the same times but for ties;
    `by_message=False` avoids that.

    With `into_forward` a step does not wait for its results: in the next forward pass each layer waits for its own.
    Buckets are then sent as they are "ready", or those first that are in "need" first. Without it, the method's
    `Overlap(into_forward=...)` says so.

    `failures` says which ranks die, and after how many seconds. As under `attach`, that ends training, unless it is
    gossip and `drop_dead` is set: then neighbours go on without them.

    >>> import thinwire as tw
    >>> load = Load.of("resnet50", seconds=0.3)
    >>> for rate in ("1gbit", "100gbit"):
    ...     print(f"{foresee(tw.methods.sgd(), load, 8, network=tw.Network(rate, '50us')).step:.3f} s")
    1.540 s
    0.301 s
    """
    check_method_type(method, "tw.sim.foresee({}, load)")
    check_arguments(
        "foresee",
        workers,
        steps,
        seed,
        min_size,
        network=network,
        costs=costs,
        plan=plan,
        stragglers=stragglers,
        failures=failures,
    )
    if steps < 1:
        raise ValueError(f"foresee(steps={steps}) foresees nothing; write steps={STEPS}")
    into_forward = method.overlap.into_forward if into_forward is None else into_forward
    check_method(method, workers, drop_dead=drop_dead)
    load = load if isinstance(load, Load) else Load.of(load)
    costs = Costs() if costs is None else costs
    network = Network() if network is None else network

    def seconds(method: Method, load: Load, plan: Plan) -> float:
        method = replace(method, overlap=replace(method.overlap, into_forward=None))
        return foresee(method, load, workers, steps=2, network=network, costs=costs, plan=plan).step

    if plan is None and method.overlap.buckets != "fixed":
        plan = planned(method, load, min_size, seconds)
    plan = plan_of(method, load.items, min_size, ()) if plan is None else plan
    if into_forward is not None:
        check_choice("foresee", "into_forward", into_forward, ("ready", "need"))
        if method.sync.of.models or method.exchange.served or method.sync.staleness != 0:
            raise ValueError(
                f"{method.id}: only gradients in step are waited for layer by layer; leave into_forward out"
            )
        method = replace(method, overlap=replace(method.overlap, into_forward=into_forward))
    if into_forward == "need":
        plan = in_order(plan, load, cost(method, load.device, seconds), method.lanes(load.device))
    Interfaces(network, workers)  # refuses hosts and racks that do not fit
    if stragglers is not None:
        stragglers.check(workers)
    played = script(method, plan, load, workers, costs, drops=drop_dead)
    bits = costs.estimated(method.exchange.channels)
    by_message = workers <= BY_MESSAGE if by_message is None else by_message
    clock = VirtualClock(workers, network, stragglers, seed, numbers=False)
    failures = failures or {}
    for rank, time in failures.items():
        clock.check_failure(rank, time)
    quick = not (marks or by_message or into_forward)
    if quick and fits(method, played, network) and len(failures) < workers:
        all_ = Together(method, played, load, workers, network, costs, failures)
        ends = all_.run(steps, stragglers, seed)
        wires = all_.crowd.wires
        return Forecast(
            workers, tuple(ends), wires.bytes, wires.messages, all_.crowd.coded, bits, stopped=all_.stopped
        )
    if quick and gossips(method, played, network) and (drop_dead or not failures) and len(failures) < workers:
        near = Neighbours(method, played, load, workers, network, costs)
        rows = _rows(near.run(steps, stragglers, seed, failures), failures)
        return Forecast(workers, rows, near.bytes, near.messages, near.coded, bits)
    found: list[Mark] | None = [] if marks else None
    stage = Stage(clock, played, load, costs, found, drop_dead)
    players = [Player(stage, rank) for rank in range(workers)]

    async def life(player: Player) -> None:
        own = turns(method, player) if into_forward is None else Forward(player, plan)
        for number in range(steps):
            factor = 1.0 if stragglers is None else stragglers.factor(player.rank, number, seed)
            await own.step(number, factor)
            player.ends.append(clock.now)
        await own.end()

    for player in players:
        clock.spawn(player.rank, life(player))
    for rank, time in failures.items():
        clock.fail(rank, time, drops=drop_dead)
    stopped = ""
    try:
        clock.run()
    except PeerError as error:
        stopped = str(error)
    if not stopped and len(clock.dead) == workers:
        stopped = "all ranks have died"
    sent = clock.traffic
    return Forecast(
        workers,
        _rows([player.ends for player in players], clock.dead),
        sum(one.bytes for one in sent),
        sum(one.messages for one in sent),
        sum(player.coded for player in players),
        bits,
        tuple(found or ()),
        stopped,
    )


def _rows(ends: Sequence[list[float]], dead: Mapping[int, float]) -> tuple[tuple[float, ...], ...]:
    """The ends of the steps that all living workers have ended, from those of each worker."""
    done = min((len(own) for rank, own in enumerate(ends) if rank not in dead), default=0)
    rows = [own[:done] + [math.nan] * (done - len(own)) for own in ends]
    return tuple(zip(*rows, strict=True))


WITHOUT = ("link", "latency", "processor", "computing")


def binds(
    method: Method,
    load: Load | str | Sequence[Weight],
    workers: int,
    *,
    network: Network | None = None,
    costs: Costs | None = None,
    **more: object,
) -> dict[str, float]:
    """How many seconds a step would be shorter if one thing took no time: the largest is what binds.

    "link" is the rate, "latency" the latency, "processor" encoding and decoding, "computing" the load itself.
    """
    check_arguments("binds", workers, more.get("steps", STEPS), network=network, costs=costs)
    load = load if isinstance(load, Load) else Load.of(load)
    network, costs = Network() if network is None else network, Costs() if costs is None else costs
    idle = replace(load, tensors=tuple(one._replace(seconds=0.0) for one in load.tensors), computed=0.0, update=0.0)
    free = replace(costs, usual=type(costs.usual)(), coders={})
    variants = {
        "link": (load, replace(network, rate=None, slow={}, latency=network.delay), costs),
        "latency": (load, replace(network, latency=0.0), costs),
        "processor": (load, network, free),
        "computing": (idle, network, costs),
    }
    whole = foresee(method, load, workers, network=network, costs=costs, **more).step  # type: ignore[arg-type]
    return {
        what: whole - foresee(method, one, workers, network=there, costs=spent, **more).step  # type: ignore[arg-type]
        for what, (one, there, spent) in variants.items()
    }
