"""Profile: all that is measured of a model on this machine, from which every method is replayed on any link.

`measured` trains copies of the model, so that the model itself stays as it is. Codecs are timed on the model's own
gradient, bucket by bucket: by themselves, as many at once as there are lanes, and beside a training loop. In a
process group all ranks measure the same at the same time, and the slowest counts, for which the others would wait.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from thinwire.core.by_id import method as by_id
from thinwire.core.per_tensor import PerTensor
from thinwire.core.signals import Grad
from thinwire.engine.advice import advice
from thinwire.engine.plan import plan_of
from thinwire.planning import gauge
from thinwire.planning.alone import ENGINE, overheads
from thinwire.planning.company import Company
from thinwire.planning.computing import Computing, gradients, measure
from thinwire.planning.contestant import Contestant, of_method
from thinwire.planning.device import Device, Host, device_of
from thinwire.planning.idle import Heats, Meter, heats
from thinwire.planning.link import Sockets
from thinwire.planning.pause import Pause
from thinwire.planning.playback import Played, Tape, play, timed
from thinwire.planning.record import EXACT, FEW, ONCE, Recorded, record, record_agreement, skips
from thinwire.planning.rivals import RIVALS, width_of
from thinwire.planning.rounds import either, undisturbed
from thinwire.planning.script import Script, Work, at_most, changed, cores_of, seconds_of, typical
from thinwire.planning.settled import Settled, settled
from thinwire.planning.stage import Stage

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from thinwire.core.method import Method
    from thinwire.engine.plan import Parcel
    from thinwire.planning.computing import Makes, Step
    from thinwire.planning.outlook import Setting

PLAYED, BESIDE = 7, 2  # rounds of each bucket that are timed: in lanes, and in company there
WARM = 3  # rounds of each lane that are not timed
LONG = 0.1  # seconds of a step that are too long to take it before every round of every bucket
MOST = 2.0  # times, by which both may differ from what sharing cores explains; more was something else on the machine


class Taped(NamedTuple):
    """What a bucket's requests were answered with among so many ranks, and its seconds on this one, alone.

    The tape of the largest bucket of a method is kept.
    """

    tape: Tape | None
    ranks: int
    seconds: float


@final
@dataclass
class Profile:
    """Of one rank. `spent` are seconds per step of DDP's ways and of the engine, besides what they send."""

    computing: Computing
    grads: Mapping[str, Tensor]
    spent: dict[str, float]
    sockets: Sockets
    drawn: bool = False  # whether gradients are random numbers, since only shapes are known
    step: Step | None = None  # a step of training, to be run beside codecs
    say: Callable[[str], None] = field(default=lambda text: None)
    company: Company = field(default_factory=Company)
    device: Device = field(default_factory=Host)
    width: int = 4  # bytes of a number of the gradients, as DDP sums them
    stage: Stage | None = None  # where real steps are taken between hosts
    optimizer: Optimizer | None = None  # that of the steps
    heats: Heats | None = None  # what computing took each time; None where it is given
    meter: Meter | None = None  # of the machine, since measuring began
    busy: float = 1.0  # part of the device that a piece of work in a lane keeps busy, of what it was timed with
    _settled: dict[str, Settled] = field(default_factory=dict)
    _made: dict[tuple[str, int], Contestant] = field(default_factory=dict)
    _gauges: dict[str, list[float]] = field(default_factory=dict)  # seconds of real steps, by method
    _known: dict[tuple[object, ...], Recorded] = field(default_factory=dict)
    _taped: dict[tuple[object, ...], Taped] = field(default_factory=dict)

    def rivals(self) -> list[Contestant]:
        """Those of DDP and its hooks that were measured, on no more cores than a rank has: times hold for that."""
        made = [
            replace(
                rival.contestant(name, self.computing.items, self.spent[name], self.width),
                unsuited=self._unsuited(by_id(rival.like), FEW),
            )
            for name, rival in RIVALS.items()
            if name in self.spent
        ]
        return [_with_cores(one, lambda cores: min(cores, self.computing.share)) for one in made]

    def gauge(self, setting: Setting) -> None:
        """Let real steps, here and on the setting's link, say what the engine takes, where the link is no bottleneck.

        All ranks call this; the steps of all calls count. Otherwise it is what the engine takes on a rank alone. On a
        GPU, steps that are shorter than their forecast say how much of it lanes need.
        """
        self.say("steps between the hosts")
        found = [self._gauged(by_id(name), setting) for name in self.device.gauges]
        if told := [one for one in found if one is not None]:
            self.spent[ENGINE], self.busy = min(told)

    def _gauged(self, method: Method, setting: Setting) -> tuple[float, float] | None:
        """What the engine takes, and the part of the device that lanes need; None where the link is the bound."""
        assert self.stage is not None  # there are hosts
        one = self._bare(method, setting.hosts)
        found = setting.replay(one)
        (bound,) = self.company.slowest([float(found.binds == "link")])  # ranks must take the steps together
        if bound:
            return None
        samples = self._gauges.setdefault(method.id, [])
        samples += gauge.seconds(self.stage, method)
        taken = median(samples)

        def with_engine(seconds: float) -> float:
            return setting.seconds(replace(one, overhead=seconds))

        def with_busy(part: float) -> float:
            return setting.seconds(_with_cores(one, lambda cores: part * cores))

        if self.device.queued and found.step > taken:
            fits = [0.0, gauge.fitted(with_busy, taken, 1 / one.lanes, 1.0)]
        else:
            fits = [gauge.fitted(with_engine, taken, 0.0, taken), 1.0]
        engine, busy = self.company.typical(fits)
        return engine, busy

    def contestants(self, methods: Sequence[Method], ranks: int, steps: Callable[[], None]) -> list[Contestant]:
        """DDP's ways and all methods. `steps` lets the gauge take some before codecs are timed, and after that."""
        steps()
        for one in methods:
            self.say(one.id)
            self.contestant(one, ranks)
        steps()
        return [*self.rivals(), *(self.contestant(one, ranks) for one in methods)]

    def contestant(self, method: Method, ranks: int) -> Contestant:
        """A method on so many ranks, measured once, with what the engine takes as it is known by now."""

        def with_engine(made: Contestant) -> Contestant:
            made = _with_cores(made, lambda cores: self.busy * cores)
            return replace(made, overhead=self.spent.get(ENGINE, 0.0))

        bare = self._bare(method, ranks)
        instead = tuple((share, with_engine(kind)) for share, kind in bare.instead)
        return replace(with_engine(bare), instead=instead)

    def _bare(self, method: Method, ranks: int) -> Contestant:
        """Each kind of its rounds, without the engine."""
        if (method.id, ranks) not in self._made:
            found = self.settled(method)
            kinds = [
                (share, self._kind(replace(found.method, exchange=exchange), ranks))
                for share, exchange in found.method.exchange.rounds()
            ]
            _, usual = kinds.pop()
            unsuited = self._unsuited(method, ranks)
            self._made[method.id, ranks] = replace(
                usual, name=method.id, instead=tuple(kinds), note=found.note, unsuited=unsuited
            )
        return self._made[method.id, ranks]

    def _unsuited(self, method: Method, ranks: int) -> str:
        """Why a method is not recommended, however fast it is: the optimizer of the steps, or what ranks exchange."""
        if method.sync.of.models or not isinstance(method.sync.of, Grad):
            return f"ranks that exchange models every {method.sync.every} steps learn otherwise, so try it first"
        return "does not suit this optimizer" if advice(method, self.optimizer, ranks) else ""

    def settled(self, method: Method) -> Settled:
        """A method as it is after some time, and what was assumed of it."""
        if method.id not in self._settled:
            grads = None if self.drawn else self.grads
            self._settled[method.id] = settled(method, self.computing.items, grads, self.company)
        return self._settled[method.id]

    def _kind(self, method: Method, ranks: int) -> Contestant:
        """A method whose rounds are all of one kind."""

        def recorded(method: Method, parcel: Parcel) -> Recorded:
            return self._recorded(method, parcel, ranks)

        def agreement(method: Method, parcels: Sequence[Parcel]) -> Script:
            self.company.together()
            return typical(
                (record_agreement(method, parcels, ranks, self.device.rounds, self.device),), self.company
            )[0]

        made = of_method(method, self.computing.items, ranks, recorded, agreement)
        if made.codec and not self.device.queued:
            crowded = self._crowded(made, method, ranks)
            made = _with_cores(made, lambda _: crowded)
        beside, disturbed = self._beside(made, method, ranks)
        return replace(made, beside=beside, disturbed=disturbed)

    def _recorded(self, method: Method, parcel: Parcel, ranks: int) -> Recorded:
        """Buckets of equal shapes are measured once. From shapes alone a usual one is, and others in proportion."""
        which = (method.id, alike(method, parcel), parcel.compressed, ranks)
        usual = self._usual(method, parcel)
        if which not in self._known and usual.layout != parcel.layout:
            self._known[which] = self._in_proportion(method, parcel, usual, ranks)
        if which not in self._known:
            self.company.together()
            flat = self._flat(parcel)
            # Each rank finds by itself whether more are extended from fewer, so that they could not play together.
            plays = not self.device.queued and (ranks <= EXACT or self.company.everybody is None)
            plays = plays and not skips(method)  # played once more, the same gradient would be left out
            again = partial(self._again, method, parcel, flat) if plays else None
            found = record(method, parcel, flat, ranks, self.device.rounds, self.device, again)
            scripts = typical(found.scripts, self.company)
            self._known[which] = found._replace(scripts=at_most(scripts, self.computing.share))
        return self._known[which]

    def _again(self, method: Method, parcel: Parcel, flat: Tensor, found: Recorded, n: int) -> Recorded:
        """Timed once more in the engine's lanes: what a codec takes lies between that and the recording.

        Recorded, ranks take turns in one warm thread, and the median of them counts. Played, lanes wake up with
        cold caches, and the slowest rank counts at every message, although another one uses its core while it waits.
        """
        warm = WARM * method.lanes(flat.device.type)  # each has threads and memory of its own, made as it is used
        before, company = self._before(), self.company
        played = play(method, parcel, flat, n, found.tape, PLAYED, warm=warm, before=before, company=company)
        lengths = [len(one) for one in played.rounds]
        if not company.agree(lengths) or len(set(lengths)) != 1:
            return found
        each = lengths[0]
        largest = self._largest(method).layout.shapes
        tape = found.tape if parcel.layout.shapes == largest else None
        self._taped[method.id, alike(method, parcel), n] = Taped(
            tape, n, undisturbed([sum(one) for one in played.rounds])
        )
        slowest = iter(company.slowest([seconds for one in played.rounds for seconds in one]))
        rounds = [[next(slowest) for _ in range(each)] for _ in played.rounds]
        scripts = timed(found.scripts, [undisturbed(one) for one in zip(*rounds, strict=True)])
        (recorded,) = company.typical([seconds_of(found.scripts)])
        shorter = scripts if seconds_of(scripts) < recorded else found.scripts
        factor = either(seconds_of(scripts), recorded) / max(seconds_of(shorter), 1e-9)
        return found._replace(scripts=changed(shorter, lambda work: work._replace(seconds=factor * work.seconds)))

    def _largest(self, method: Method) -> Parcel:
        parcels = plan_of(method, self.computing.items, None, ()).parcels
        return self._usual(method, max(parcels, key=lambda parcel: parcel.layout.numel))

    def _usual(self, method: Method, parcel: Parcel) -> Parcel:
        """The bucket that is timed for `parcel`: itself, or from shapes alone the one of median size of its kind."""
        if not self.drawn:
            return parcel
        parcels = plan_of(method, self.computing.items, None, ()).parcels
        kind = [other for other in parcels if other.compressed == parcel.compressed]
        return sorted(kind, key=lambda other: other.layout.numel)[len(kind) // 2]

    def _in_proportion(self, method: Method, parcel: Parcel, usual: Parcel, ranks: int) -> Recorded:
        """One pass says what pieces and messages a bucket has; an element takes as long as in the usual bucket."""
        timed = self._recorded(method, usual, ranks).scripts
        recorded = record(method, parcel, self._flat(parcel), ranks, ONCE, self.device)
        factor = (
            seconds_of(timed) * parcel.layout.numel / usual.layout.numel / max(seconds_of(recorded.scripts), 1e-9)
        )
        cores = cores_of(timed)
        return recorded._replace(
            scripts=changed(recorded.scripts, lambda work: Work(factor * work.seconds, cores, work.trains))
        )

    def _crowded(self, made: Contestant, method: Method, ranks: int) -> float:
        """Cores that a piece of work needs: as many as make lanes that are all busy as slow as they are found to be.

        Processor time does not tell: threads that have nothing to do spin for a while, and stop as soon as others
        need the core.
        """
        parcel = self._largest(method)
        known, share = self._recorded(method, parcel, ranks).scripts, self.computing.share
        cores, lanes = cores_of(known), min(made.lanes, sum(len(one.scripts) for one in made.sendings if one.names))
        taped = self._tape(method, parcel, ranks)
        if lanes < 2 or taped is None:
            return cores
        played = self._play(method, parcel, taped, copies=lanes)
        if played is None:
            return cores
        (slower,) = self.company.typical([undisturbed([sum(one) for one in played.rounds]) / lanes / taped.seconds])
        each = share / lanes
        return max(min(cores, each), slower * each if slower > 1 else 0.0)

    def _play(
        self, method: Method, parcel: Parcel, taped: Taped, *, beside: Step | None = None, copies: int = 1
    ) -> Played | None:
        """A bucket in company; None where that went another way on some rank."""
        if taped.tape is None:
            return None
        self.company.together()
        what, before = (method, parcel, self._flat(parcel), taped.ranks, taped.tape), self._before()
        warm = (
            WARM if copies > 1 else WARM * method.lanes(parcel.items[0].device.type)
        )  # copies fill all lanes in one round
        played = play(*what, BESIDE, warm=warm, before=before, beside=beside, company=self.company, copies=copies)
        return played if self.company.agree(len(played.rounds)) and played.rounds else None

    def _tape(self, method: Method, parcel: Parcel, ranks: int) -> Taped | None:
        """That of so many ranks, or of the most from which they were extended."""
        which = (method.id, alike(method, parcel))
        return self._taped.get((*which, ranks)) or self._taped.get((*which, EXACT))

    def _before(self) -> Step:
        """What comes before a bucket: a step of training; where that takes long, or is not known, a wait at least."""
        (seconds,) = self.company.slowest([self.computing.step])
        return Pause() if self.step is None or seconds > LONG else self.step

    def _flat(self, parcel: Parcel) -> Tensor:
        return torch.cat([self.grads[item.name] for item in parcel.items])

    def _beside(self, made: Contestant, method: Method, ranks: int) -> tuple[float, float]:
        """What a codec takes longer beside a training loop, and the loop beside a codec, cores apart."""
        if self.step is None or not made.codec or self.device.queued:
            return 1.0, 1.0
        parcel = self._largest(method)
        self._recorded(method, parcel, ranks)
        taped = self._tape(method, parcel, ranks)
        played = None if taped is None else self._play(method, parcel, taped, beside=self.step)
        if taped is None or played is None:
            return 1.0, 1.0
        slower = self.company.typical(
            [
                undisturbed([sum(one) for one in played.rounds]) / taped.seconds,
                median(played.steps) / self.computing.step,
            ]
        )
        cores = self.computing.cores + cores_of(made.scripts)
        expected = max(1.0, cores / self.computing.share)
        beside, disturbed = (min(MOST, max(1 / MOST, max(1.0, one) / expected)) for one in slower)
        return beside, disturbed


def alike(method: Method, parcel: Parcel) -> object:
    """What buckets must have in common for one to stand for the other: their shapes, and the compressor of each."""
    layout = parcel.layout
    by_name = any(isinstance(channel.encoder, PerTensor) for channel in method.exchange.channels)
    return layout if by_name else layout.shapes


def _with_cores(made: Contestant, cores: Callable[[float], float]) -> Contestant:
    """The same for everything that a contestant sends."""
    return replace(
        made,
        sendings=tuple(
            one._replace(scripts=changed(one.scripts, lambda work: work._replace(cores=cores(work.cores))))
            for one in made.sendings
        ),
    )


def measured(
    model: nn.Module,
    makes: Makes,
    *,
    sockets: Sockets,
    company: Company,
    rivals: Sequence[str] = tuple(RIVALS),
    say: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Train copies of `model` as `makes` says, and measure; in a process group all ranks call this."""
    say("computing")
    meter = Meter(company)
    device, twin = device_of(model, company), copy.deepcopy(model)
    makes = device.finished(makes)
    times = heats(lambda: measure(twin, makes, company=company, device=device), company)
    computing = times.computing
    grads = gradients(twin, computing.items)
    say("DDP and its hooks")
    spent = overheads(model, makes, company, rivals)
    step, optimizer = makes(twin)
    stage = None if company.everybody is None else Stage(model, makes, company)
    return Profile(
        computing,
        grads,
        spent,
        device.sockets(sockets),
        step=step,
        say=say,
        company=company,
        device=device,
        width=width_of(model),
        stage=stage,
        optimizer=optimizer,
        heats=times,
        meter=meter,
    )
