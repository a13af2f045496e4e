"""`thinwire simulate`: steps of any method on workers and networks that are not there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer

import thinwire as tw
from thinwire.cli.output import errors, line, reserve, say, show
from thinwire.core.rates import seconds as to_seconds
from thinwire.core.registry import suggest
from thinwire.core.trace import read_trace
from thinwire.lab.records import Row
from thinwire.sim import (
    MODELS,
    Constant,
    Costs,
    Exponential,
    Forecast,
    Load,
    LogNormal,
    Moment,
    Pass,
    ShiftedExponential,
    Stragglers,
    Transient,
    binds,
    foresee,
)

METHODS = ["sgd", "qsgd"]
MODEL, SECONDS = "resnet50", 0.1
MOST_WITH_NUMBERS = 256
SHAPES = {
    "method": "",
    "step_s": ".4f",
    "step_s_p20": ".4f",
    "step_s_p50": ".4f",
    "step_s_p80": ".4f",
    "bytes_per_step": ",.0f",
    "steps_per_s": ",.1f",
    "binds": "",
    "saves_s": ".4f",
}
NUMBERS = {name: form for name, form in SHAPES.items() if name not in ("binds", "saves_s")} | {"accuracy": ".2%"}
KINDS: dict[str, Callable[..., Stragglers]] = {
    "constant": lambda rank, times: Constant({_whole(rank): times}),
    "exponential": Exponential,
    "shifted": ShiftedExponential,
    "lognormal": LogNormal,
    "transient": Transient,
}


def simulate(
    method: Annotated[list[str] | None, typer.Argument(metavar="[METHOD]...", help="Method ids.")] = None,
    model: Annotated[str, typer.Option(help=f"Shapes of a model: {', '.join(MODELS)}.")] = MODEL,
    task: Annotated[
        str | None, typer.Option(help="Train this task with real numbers instead, such as digits.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Workers.")] = 8,
    steps: Annotated[int, typer.Option(help="Steps.")] = 10,
    rate: Annotated[str, typer.Option(help="Rate of every host's link.")] = "1gbit",
    latency: Annotated[str, typer.Option(help="Latency, one way.")] = "1ms",
    racks: Annotated[int, typer.Option(help="Racks that the hosts stand in.")] = 1,
    oversubscription: Annotated[
        float, typer.Option(help="The hosts' rates over the rate of their rack's uplink.")
    ] = 1,
    seconds: Annotated[float, typer.Option(help="Computing of a step, a third of it forward.")] = SECONDS,
    encode: Annotated[float, typer.Option(help="Nanoseconds per element of encoding.")] = 0.0,
    decode: Annotated[float, typer.Option(help="Nanoseconds per element of decoding.")] = 0.0,
    stragglers: Annotated[
        str | None,
        typer.Option(help="constant:RANK,TIMES, exponential, shifted:SCALE, lognormal:SIGMA, transient:P,TIMES."),
    ] = None,
    fail: Annotated[list[str] | None, typer.Option(help="RANK@TIME: this rank dies, such as 3@2s.")] = None,
    drop_dead: Annotated[bool, typer.Option(help="Let neighbours that gossip go on without it.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Also write a trace of one method, for ui.perfetto.dev.")] = None,
    beside: Annotated[
        Path | None, typer.Option(help="Copy the workers of this trace file, of a real run say, into --trace.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the stragglers.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    save: Annotated[Path | None, typer.Option(help="Also write the rows to this CSV file.")] = None,
) -> None:
    """Foresee how long steps take on many workers, by shapes alone or with real numbers."""
    names = method or METHODS
    if trace is not None and (len(names) > 1 or task is not None):
        raise ValueError("a trace shows one method, by shapes; write thinwire simulate qsgd --trace qsgd.json")
    if beside is not None:
        if trace is None:
            raise ValueError(f"--beside {beside}: write --trace both.json, the file that is to have both")
        read_trace(beside)  # now, and not after the simulation
    _check_figures(workers, steps, racks, seconds, encode, decode)
    if oversubscription != 1 and racks == 1:
        raise ValueError("one rack shares no uplink; write --racks 4 --oversubscription 4")
    if task is not None:
        _check_numbers(
            model=model != MODEL, seconds=seconds != SECONDS, encode=encode, decode=decode, drop_dead=drop_dead
        )
    reserve(trace, save)
    methods = [tw.method(name) for name in names]
    network = tw.Network(rate, latency, racks=racks, oversubscription=oversubscription)
    slow, deaths = parse_stragglers(stragglers), parse_failures(fail or [])
    with line("simulating") as tell:
        rows: list[Row] = []
        for one in methods:
            tell(f"simulating {one.id}")
            if task is not None:
                rows.append(_trained(one, task, workers, steps, network, slow, deaths, seed))
                continue
            costs = Costs(Pass(encode * 1e-9, decode * 1e-9))
            load = Load.of(model, seconds)
            done = foresee(
                one,
                load,
                workers,
                steps=steps,
                network=network,
                costs=costs,
                stragglers=slow,
                failures=deaths,
                drop_dead=drop_dead,
                seed=seed,
                marks=trace is not None,
            )
            if trace is not None:
                done.trace(trace, beside)
                errors.print(f"trace written to {trace}", soft_wrap=True)
            saved: dict[str, float] = {}
            if not deaths:
                saved = binds(
                    one, load, workers, network=network, costs=costs, steps=steps, stragglers=slow, seed=seed
                )
            rows.append(_foreseen(one, done, saved))
    what = task if task is not None else f"{model}, {Load.of(model).numel:,} parameters"
    where = f"{rate}, {latency}" + (f", {racks} racks oversubscribed {oversubscription:g} times" if racks > 1 else "")
    title = f"{what}; {workers} workers, {where}."
    asked: Row = {"model": model} if task is None else {"task": task}
    asked |= {"rate": rate, "latency": latency, "racks": racks, "oversubscription": oversubscription}
    asked |= {"stragglers": stragglers, "seed": seed}
    rows = [{**row, **asked} for row in rows]  # what was simulated, for who reads several files
    show(rows, as_json=as_json, title=title, columns=SHAPES if task is None else NUMBERS, save=save)
    if not as_json:
        _explain(rows)


def parse_stragglers(text: str | None) -> Stragglers | None:
    """`lognormal:0.3` and its like.

    >>> parse_stragglers("transient:0.1,5")
    Transient(probability=0.1, times=5.0)
    """
    if text is None:
        return None
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"--stragglers {text}: there is no {kind!r}{suggest(kind, KINDS)}")
    try:
        return KINDS[kind](*(float(word) for word in rest.split(",") if word))
    except TypeError:
        raise ValueError(
            f"--stragglers {text}: too many numbers, or too few; write --stragglers lognormal:0.3, or constant:3,2.0"
        ) from None
    except ValueError as error:
        raise ValueError(
            f"--stragglers {text}: write --stragglers lognormal:0.3, or constant:3,2.0 ({error})"
        ) from None


def parse_failures(texts: list[str]) -> dict[int, float]:
    """Ranks and the times at which they die.

    >>> parse_failures(["3@1.5s", "0@200ms"])
    {3: 1.5, 0: 0.2}
    """
    found = {}
    for text in texts:
        parts = re.fullmatch(r"(\d+)@(.+)", text)
        if not parts:
            raise ValueError(f"--fail {text}: write the rank and the time, --fail 3@2s")
        found[int(parts[1])] = to_seconds(parts[2], "time", f"--fail {parts[1]}@2s")
    return found


def _whole(rank: float) -> int:
    if not rank.is_integer():
        raise ValueError(f"{rank} is no rank")
    return int(rank)


def _check_figures(workers: int, steps: int, racks: int, seconds: float, encode: float, decode: float) -> None:
    """Refuse what `foresee` and `simulate` would, in the words of the command line."""
    for option, count, usual in (("workers", workers, 8), ("steps", steps, 10), ("racks", racks, 1)):
        if count < 1:
            raise ValueError(f"--{option} {count}: write --{option} {usual}, or another number from 1 on")
    if not 0 < seconds < math.inf:
        raise ValueError(f"--seconds {seconds:g}: write how long a step computes, such as --seconds {SECONDS}")
    for option, cost in (("encode", encode), ("decode", decode)):
        if not 0 <= cost < math.inf:
            raise ValueError(f"--{option} {cost:g}: write nanoseconds per element, such as --{option} 1.5")


def _check_numbers(**given: float | bool) -> None:
    """Refuse what is for shapes alone: with real numbers it would be left out without a word."""
    stray = [f"--{name.replace('_', '-')}" for name, one in given.items() if one]
    if stray:
        raise ValueError(f"{', '.join(stray)}: for shapes alone, and not for a task; leave that out, or --task")


def _foreseen(method: tw.Method, done: Forecast, saved: dict[str, float]) -> Row:
    most = max(saved, key=saved.__getitem__, default="")
    ended = max(1, len(done.ends))
    return {
        "method": method.id,
        "workers": done.workers,
        "steps": len(done.ends),
        "step_s": _number(done.step),
        **{f"step_s_p{q}": _number(done.quantile(q / 100)) for q in (20, 50, 80)},
        "bytes_per_step": done.bytes_sent / done.workers / ended,
        "messages": done.messages,
        "steps_per_s": done.workers / done.step if done.step and not math.isnan(done.step) else None,
        "coded_s": done.coded / done.workers / ended,
        "binds": most or None,
        "saves_s": saved.get(most),
        **{f"saves_{what}_s": value for what, value in saved.items()},
        "bits_per_element": done.bits,
        "stopped": done.stopped,
    }


def _trained(
    method: tw.Method,
    task: str,
    workers: int,
    steps: int,
    network: tw.Network,
    slow: Stragglers | None,
    deaths: dict[int, float],
    seed: int,
) -> Row:
    if workers > MOST_WITH_NUMBERS:
        raise ValueError(
            f"{workers} workers with real numbers would take hours; write --workers {MOST_WITH_NUMBERS} or less, or "
            "leave out --task for shapes alone"
        )
    heard: list[Moment] = []
    stopped, tests, sent = "", {}, 0
    try:
        done = tw.simulate(
            method,
            task,
            workers,
            steps=steps,
            network=network,
            stragglers=slow,
            failures=deaths,
            seed=seed,
            watch=heard.append,
        )
        sent = done.bytes_sent
        tests = {name: mean(one[name] for one in done.tests) for name in done.tests[0]}
    except tw.PeerError as error:
        stopped = str(error)
    last: dict[int, float] = {}
    took = []
    for moment in heard:
        took.append(moment.seconds - last.get(moment.rank, 0.0))
        last[moment.rank] = moment.seconds
    took.sort()
    end = max(last.values(), default=0.0)
    return {
        "method": method.id,
        "workers": workers,
        "steps": steps,
        "step_s": mean(took) if took else None,
        **{f"step_s_p{q}": took[min(len(took) - 1, q * len(took) // 100)] if took else None for q in (20, 50, 80)},
        "bytes_per_step": sent / workers / steps if sent else None,
        "steps_per_s": len(took) / end if end else None,
        "accuracy": tests.get("accuracy"),
        **{name: value for name, value in tests.items() if name != "accuracy"},
        "stopped": stopped,
    }


def _explain(rows: list[Row]) -> None:
    for row in rows:
        if row["stopped"]:
            say(f"{row['method']} stopped after {row['steps']} steps: {row['stopped']}.")
        for coder, bits in (row.get("bits_per_element") or {}).items():
            say(f"{row['method']}: the size of {coder} is an estimate, {bits:.3f} bits per element.")


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
