"""plan: does compression pay, for this model on this link? Measure, replay, recommend."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, astuple, fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from thinwire.comm.network import Network
from thinwire.core.by_id import method as by_id
from thinwire.core.loss import loss_of
from thinwire.core.method import Method
from thinwire.engine.misuse import check_method_type
from thinwire.planning import between
from thinwire.planning.asked import (
    check_alike,
    check_asked,
    check_link,
    check_names,
    check_optimizer,
    drawing_nothing,
    optimizer_of,
    square_of,
)
from thinwire.planning.company import Company
from thinwire.planning.contestant import Contestant, check
from thinwire.planning.idle import doubt
from thinwire.planning.link import Cost, Link, Sockets, loopback
from thinwire.planning.outlook import Outlook, Setting, outlook
from thinwire.planning.profile import Profile, measured
from thinwire.planning.trial import MOST, finalists, trial
from thinwire.planning.watched import watched

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from thinwire.planning.computing import Makes, Step

METHODS = ("bf16", "int8", "int4", "ecq-sgd", "ef-signsgd", "powersgd:rank=4", "topk", "diloco")
FORECAST = "is forecast to take"
WRITE = "write tw.plan(model, (inputs, targets), loss=torch.nn.functional.cross_entropy)"
Loss = Callable[..., "Tensor"]
Say = Callable[[str], None]


@drawing_nothing()
def plan(
    model: nn.Module,
    sample_batch: Any,
    *,
    loss: Loss | None = None,
    link: Network | str | None = None,
    hosts: int | None = None,
    methods: Sequence[Method | str] = METHODS,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    tries: int = MOST,
    say: Say = lambda text: None,
) -> Outlook:
    """Forecast the step of every method, of DDP and of its hooks, for `model` on `hosts` hosts.

    sample_batch   a tensor, a pair of inputs and targets, or a dict for `model(**batch)`; for one step of one host
    loss           `loss(outputs, targets)`, or of the outputs alone if the batch has no targets; not needed where the
                   outputs have a loss, as those of Hugging Face's models do
    link           `tw.Network("1gbit", "1ms")` or "1gbit"; measured where a process group is initialised
    hosts          one rank on each; those of the process group unless given

    methods        methods or their ids
    optimizer      makes the optimizer from the parameters; plain SGD unless given
    tries          of the methods that are forecast within 30% of the fastest, so many take real steps where the link
                   is measured, and the recommendation is chosen by these; 0: by forecasts alone
    say            is told what is being measured, how far it is, and each forecast

    Copies of the model are trained for some seconds, so that the model itself stays as it is. In a process group all
    ranks call this at the same time, and the outlook of rank 0 counts; PeerError names a rank that is lost meanwhile.
    Where other programs disturb the measurements, `disturbed` of the outlook says so.
    """
    check_asked(model, loss, hosts, methods, tries, say)
    asked = [by_id(one) if isinstance(one, str) else one for one in methods]
    for one in asked:
        check_method_type(one, "tw.plan(model, batch, methods=[{}])")
        check(one)
    known = list({one.id: one for one in asked}.values())  # "qsgd" and "qsgd:bits=4" are the same
    many = dist.is_initialized() and dist.get_world_size() > 1
    hosts = hosts if hosts is not None else dist.get_world_size() if many else None
    if hosts is None or hosts < 2:
        raise ValueError(f"hosts={hosts}: for how many hosts? write tw.plan(model, batch, hosts=16)")
    if link is None and not many:
        raise ValueError(
            'no process group is initialised whose link could be measured; write link=tw.Network("1gbit", "1ms")'
        )
    makes = steps_of(sample_batch, loss, optimizer)
    with watched() if many else nullcontext(Company()) as company:
        say = _together(say, company)
        check_alike(company, known, hosts, link)
        found, sockets = _link(link, company, say)
        profile = measured(model, makes, sockets=sockets, company=company, say=say)
        together = many and hosts == dist.get_world_size()
        if together:
            profile.computing = profile.computing.slowest(company.slowest(profile.computing.steps))
        setting = Setting(hosts, found, profile.computing, profile.sockets, together=together, here=company.here)
        if not (together and link is None):
            return _of_first(outlook_of(profile, setting, known), company)
        contestants = profile.contestants(known, hosts, lambda: profile.gauge(setting))
        forecast = _doubted(outlook(setting, contestants), profile, setting, contestants)
        # What a rank has measured by itself, as of DDP alone, differs a little, and so might the choice.
        return _of_first(_tried(forecast, profile, known, tries, say), company)


def _of_first(mine: Outlook, company: Company) -> Outlook:
    return mine if company.everybody is None else Outlook.read(company.of_first(asdict(mine)))


def outlook_of(profile: Profile, setting: Setting, methods: Sequence[Method]) -> Outlook:
    """All methods and rivals of a profile; `profile.say` hears what is measured, how far it is, and each forecast."""
    rivals, ours, began = profile.rivals(), list[Contestant](), time.monotonic()
    for number, method in enumerate(methods):
        profile.say(f"{method.id}{_progress(number, len(methods), time.monotonic() - began)}")
        ours.append(profile.contestant(method, setting.hosts))
        profile.say(f"{method.id} {FORECAST} {1e3 * setting.seconds(ours[-1]):,.1f} ms a step")
    contestants = [*rivals, *ours]
    return _doubted(outlook(setting, contestants), profile, setting, contestants)


def _progress(done: int, total: int, seconds: float) -> str:
    """How far it is, and how long the rest takes if the methods to come take as long as those before.

    >>> _progress(3, 9, 60.0), _progress(0, 9, 0.0), _progress(8, 9, 80.0)
    (' (4 of 9, about 2 min left)', ' (1 of 9)', ' (9 of 9, about 10 s left)')
    """
    left = seconds / done * (total - done) if done else 0.0
    about = f", about {left / 60:.0f} min left" if left >= 90 else f", about {left:.0f} s left" if left >= 1 else ""
    return f" ({done + 1} of {total}{about})"


def _doubted(forecast: Outlook, profile: Profile, setting: Setting, contestants: Sequence[Contestant]) -> Outlook:
    """With a sentence where other programs ran meanwhile, or computing took different times; all ranks call this."""
    if profile.heats is None or profile.meter is None:
        return forecast
    load = profile.meter.read()
    others, disturbed = profile.company.slowest([load.others, float(load.disturbs)])
    if profile.heats.steady and not disturbed:
        return forecast
    times = profile.heats.steps
    ends = [setting.computing.slowest([seconds]) for seconds in (min(times), max(times))]
    choices = [
        (computing.step, outlook(replace(setting, computing=computing), contestants).recommended)
        for computing in ends
    ]
    return replace(forecast, disturbed=doubt(times, max(others, profile.heats.others), choices))


def _tried(found: Outlook, profile: Profile, methods: Sequence[Method], tries: int, say: Say) -> Outlook:
    """With real steps of those between which the forecasts cannot decide."""
    assert profile.stage is not None  # there are hosts
    names = finalists({row.method: row.step_ms for row in found.rows if not row.unsuited}, tries)
    return found.after(trial(names, profile.stage, {one.id: profile.settled(one).method for one in methods}, say))


def steps_of(batch: Any, loss: Loss | None, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None) -> Makes:
    """What a step of training is, for any copy of the model."""
    check_optimizer(optimizer)
    pair = isinstance(batch, tuple | list) and len(batch) == 2
    if loss is None and pair:
        raise ValueError(
            "the batch has targets; write loss=torch.nn.functional.cross_entropy, or the one you train with"
        )
    named = isinstance(batch, Mapping)
    if not (pair or named or isinstance(batch, torch.Tensor)):
        raise TypeError(
            f"sample_batch is a tensor, a pair of inputs and targets, or a dict; got {_kind(batch)}: "
            "write tw.plan(model, (inputs, targets), loss=...), or a dict where there are several inputs"
        )
    inputs, targets = batch if pair else (batch, None)

    def value(out: Any) -> Tensor:
        if loss is not None:
            return loss(out, targets) if pair else loss(out)
        return _own_loss(out) if named else square_of(out)

    def makes(net: nn.Module) -> tuple[Step, Optimizer]:
        made = optimizer_of(net, optimizer)
        if named:
            check_names(net, inputs)

        def step() -> None:
            made.zero_grad()
            out = net(**inputs) if named else net(inputs)
            torch.autograd.backward(loss_of(value(out), WRITE))
            made.step()

        return step, made

    return makes


def _kind(batch: Any) -> str:
    return f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")


def _own_loss(out: Any) -> Tensor:
    """The loss that a model has made itself."""
    found = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    if not isinstance(found, torch.Tensor):
        raise ValueError(
            'the outputs have no loss; put the targets into the batch, as "labels" for models of Hugging Face, or '
            "write tw.plan(model, batch, loss=lambda outputs: ...)"
        )
    return found


def _link(link: Network | str | None, company: Company, say: Say) -> tuple[Link, Sockets]:
    """The link and what it costs a host: measured where there are hosts, otherwise what is said of it."""
    if link is None:
        say("the link")
        known = _slowest(loopback(), company)  # between the hosts, it could not be told from what the link takes
        return between.link(company.lanes, known), known
    network = Network(link) if isinstance(link, str) else link
    if not isinstance(network, Network):
        raise TypeError(f'link={link!r}: write link=tw.Network("1gbit", "1ms")')
    check_link(network)
    say("sockets")
    return Link(8 * network.bytes_per_second(0), network.delay), loopback()


def _slowest(known: Sockets, company: Company) -> Sockets:
    """What sending costs the slowest of the hosts; the same on all ranks, which then measure the same."""
    costs = [known.ring, known.ring16, known.trade, known.half]
    figures = iter(company.slowest([figure for cost in costs for figure in astuple(cost)]))
    return Sockets(*(Cost(*islice(figures, len(fields(Cost)))) for _ in costs))


def _together(say: Say, company: Company) -> Say:
    """Ranks that share a machine measure the same at the same time, as they will train."""

    def said(text: str) -> None:
        company.together()
        say(text)

    return said
