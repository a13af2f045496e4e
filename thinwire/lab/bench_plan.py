"""Is the planner right? Its forecasts beside real steps between shaped hosts, cell by cell.

All ranks of a world first measure, with free links, sockets, computing and DDP's ways alone; then, at each rate, the
link itself, with messages of their own; and then codecs, with free links, and before and after them, at the highest
rate, some steps of methods that are not forecast. From that every cell is forecast. As in `tw.plan`, those whose
forecasts lie close to the fastest then take some steps at each rate (tried_ms), by which one of them is recommended;
forecasts stay as they are. Only then are cells measured: in its turn a contestant is built anew, warms up on free
links, and takes timed steps at every rate. Each starts at a barrier and ends when the slowest rank has ended. All
have several turns, so that what disturbs the machine for a while is not taken for one of them. No step of a
contestant is used to forecast it, or another one.

    error = predicted / measured - 1

computing_ms is a step without communication when everything was measured, and computing_now_ms just before the cells
of a row: where they differ, something else has begun or ended on the machine, and the error is its as well.
"""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw
from thinwire.core.rates import bits_per_second
from thinwire.lab import plan_spans
from thinwire.lab.bench_hosts import BASELINES, FREE, Build, attached, over_ranks, reshape, sample
from thinwire.lab.bench_step import batch, done, model, stepper, where
from thinwire.lab.launch import Say
from thinwire.lab.net.shaping import congestion
from thinwire.lab.records import Row, quantiles
from thinwire.planning import between
from thinwire.planning.alone import LARGE
from thinwire.planning.choice import Took, choose
from thinwire.planning.company import Company
from thinwire.planning.contestant import Contestant
from thinwire.planning.outlook import Setting
from thinwire.planning.pause import SECONDS, Pause
from thinwire.planning.planner import steps_of
from thinwire.planning.profile import measured
from thinwire.planning.rivals import RIVALS
from thinwire.planning.script import Work
from thinwire.planning.trial import MOST as MOST_TRIED
from thinwire.planning.trial import finalists, trial

METHODS = ("bf16", "int8", "qsgd:bits=4", "ecq-sgd", "ef-signsgd", "topk")
HOSTS, RATES = (2, 4, 8), ("10gbit", "1gbit", "100mbit")
PARAMS = 12 << 20
TURNS, FEWEST, MOST = 3, 1, 15  # turns of every contestant, and timed steps of a cell in one of them
MORE, SHORT = 3, 0.1  # turns that cells have besides, whose steps take fewer seconds: these scatter
NOW = 6  # steps without communication before a turn, the first of which does not count
NEAR = 0.05  # of the fastest: a recommendation that close to it is as good


@dataclass(frozen=True)
class Job:
    """What to forecast and measure; `budget` is how many seconds the timed steps of a cell take."""

    methods: Sequence[str]
    params: int
    rates: Sequence[str]
    budget: float
    batch: int = 1
    rivals: Sequence[str] = tuple(RIVALS)
    device: str = "cpu"  # or cuda: all hosts share one GPU
    tries: int = MOST_TRIED  # contestants that take steps at each rate to choose by

    def check(self, hosts: Sequence[int]) -> None:
        """Raise a ValueError for settings that cannot be measured."""
        if self.params < 1 or self.batch < 1 or not 0 < self.budget < math.inf or not self.rates or not hosts:
            raise ValueError(
                "params, batch and budget are positive, and there are hosts and rates; write --hosts 2,4 --rate 1gbit"
            )
        if min(hosts) < 2:
            raise ValueError(f"hosts={min(hosts)}: between how many? write --hosts 2,4,8")
        for rate in self.rates:
            bits_per_second(rate)
        for text in self.methods:
            tw.method(text)


def bench(say: Say, job: Job) -> list[Row]:
    """One row per cell; this runs on every rank, and the rows of rank 0 count."""
    first = dist.get_rank() == 0

    def tell(text: str) -> None:
        """Ranks measure the same at the same time, as they will train."""
        dist.barrier()
        if first:
            say(("measuring", text))

    net = model(job.params).to(job.device)
    settings, contestants, tried = _forecasts(job, net, tell)
    bare, optimizer = steps_of(batch(job.params, job.batch).to(job.device), None, None)(copy.deepcopy(net))
    alone, pause = done(bare, job.device), Pause(SECONDS if job.device == "cpu" else 0.0)
    optimizer.register_step_pre_hook(pause)  # it waits as it did when computing was measured
    cells: dict[tuple[str, str], Cell] = {}
    for turn, one in product(range(TURNS + MORE), contestants):
        rates = [rate for rate in job.rates if turn < TURNS or median(cells[one.name, rate].times) < SHORT]
        if not rates:
            continue
        if first:
            say((f"steps, turn {turn + 1} of {TURNS + MORE}", one.name))
        now = over_ranks([_timed(alone, pause) for _ in range(NOW)][1:], dist.ReduceOp.MAX)
        build = BASELINES[one.name] if one.name in BASELINES else partial(attached, text=one.name)
        for rate, cell in _steps(build, net, job, rates, look=turn == TURNS - 1).items():
            known = cells.get((one.name, rate), Cell([], [], {}))
            inside = known.inside | cell.inside
            cells[one.name, rate] = Cell(known.times + cell.times, known.computing + now, inside)
        if job.params >= LARGE:
            gc.collect()  # DDP is part of a cycle, and as large as the model
        if job.device != "cpu":
            torch.cuda.empty_cache()
    named = {one.name: one for one in contestants}
    control = congestion()
    return [
        _row(named[name], settings[rate], rate, cell, job)
        | {"congestion": control, "tried_ms": tried.get((name, rate))}
        for (name, rate), cell in cells.items()
    ]


Tried = dict[tuple[str, str], float]  # milliseconds by method and rate


def _forecasts(job: Job, net: nn.Module, tell: Say) -> tuple[dict[str, Setting], list[Contestant], Tried]:
    """The setting at each rate, the contestants, before any has taken a step, and then some steps of the best."""
    n = dist.get_world_size()
    company = Company.of_group()
    reshape(FREE)
    tell("sockets")
    sockets = between.sockets(company.lanes[0])
    makes = steps_of(batch(job.params, job.batch).to(job.device), None, None)
    profile = measured(net, makes, sockets=sockets, company=company, rivals=job.rivals, say=tell)
    computing = profile.computing.slowest(company.slowest(profile.computing.steps))
    settings = {}
    for rate in job.rates:
        tell(f"the link at {rate}")
        reshape(rate)
        link = between.link(company.lanes, sockets, bits_per_second(rate))
        settings[rate] = Setting(n, link, computing, profile.sockets, together=True)
    fastest = max(job.rates, key=bits_per_second)

    def gauge() -> None:
        reshape(fastest)
        profile.gauge(settings[fastest])
        reshape(FREE)

    methods = {one.id: one for one in (tw.method(text) for text in job.methods)}
    contestants = profile.contestants(list(methods.values()), n, gauge)
    tried: Tried = {}
    for rate, setting in settings.items():
        tell(f"the best at {rate}")
        reshape(rate)
        assert profile.stage is not None
        names = finalists({one.name: setting.seconds(one) for one in contestants}, job.tries)
        settled = {name: profile.settled(one).method for name, one in methods.items()}
        times = trial(names, profile.stage, settled, tell)
        tried |= {(name, rate): 1e3 * seconds for name, seconds in times.items()}
    reshape(FREE)
    return settings, contestants, tried


class Cell(NamedTuple):
    """Seconds of the slowest rank's steps, of steps without communication just before, and what happened in them."""

    times: list[float]
    computing: list[float]
    inside: Row


def _steps(build: Build, net: nn.Module, job: Job, rates: Sequence[str], *, look: bool) -> dict[str, Cell]:
    """What was measured at some rates, the fastest first; with a `look` into one more step."""
    x = batch(job.params, job.batch).to(job.device)
    found = {}
    reshape(FREE)
    with build(copy.deepcopy(net), lambda one, optimizer: done(stepper(one, x, optimizer), job.device)) as contestant:
        for _ in range(contestant.warmup):
            contestant.step()
        for rate in sorted(rates, key=bits_per_second, reverse=True):
            reshape(rate)
            before = contestant.stats()
            (longest,) = over_ranks([sample(contestant)], dist.ReduceOp.MAX)
            count = min(MOST, max(FEWEST, int(job.budget / TURNS / (longest * contestant.period))))
            kept = [longest] if longest > job.budget else []  # a long step is hardly longer for being the first
            times = [sample(contestant) for _ in range(count - len(kept))]
            spent = plan_spans.spent(before, contestant.stats(), (1 + len(times)) * contestant.period)
            times = kept + over_ranks(times, dist.ReduceOp.MAX)
            found[rate] = Cell(times, [], spent | (plan_spans.measured(contestant) if look else {}))
        reshape(FREE)
    return found


def _timed(step: Callable[[], None], pause: Pause) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start - pause.taken()


def _row(one: Contestant, setting: Setting, rate: str, cell: Cell, job: Job) -> Row:
    low, middle, high = quantiles(cell.times)
    replays = [setting.seconds(one, slower) for slower in setting.slowness()]
    link, predicted, replayed = setting.link, replays[1], setting.replay(one)
    ring, trade = setting.sockets.ring, setting.sockets.trade
    return {
        "method": one.name,
        **where(job.device),
        "hosts": setting.hosts,
        "rate": rate,
        "params": setting.computing.elements,
        "batch": job.batch,
        "steps": len(cell.times),
        "predicted_ms": 1e3 * predicted,
        "predicted_ms_p20": 1e3 * replays[0],
        "predicted_ms_p80": 1e3 * replays[2],
        "step_ms": 1e3 * middle,
        "step_ms_p20": 1e3 * low,
        "step_ms_p80": 1e3 * high,
        "error": predicted / middle - 1,
        "binds": setting.binds(one),
        "sent_bytes": round(one.sent(setting.hosts)),
        "codec_ms": 1e3 * one.codec,
        "overhead_ms": 1e3 * one.overhead,
        "beside": one.beside,
        "disturbed": one.disturbed,
        "computing_ms": 1e3 * setting.computing.step,
        "computing_now_ms": 1e3 * median(cell.computing),
        "latency_ms": 1e3 * link.latency,
        "queue_ms": 1e3 * link.queue,
        "goodput": link.goodput,
        "summed": link.share(summed=True),
        "burst_kb": link.burst / 1e3,
        "single": " ".join(f"{sent / 1e3:.0f}kB:{part:.3f}" for sent, part in link.single),
        "crowds": " ".join(f"{sent / 1e3:.0f}kB:{part:.3f}" for sent, part in link.crowds),
        "codec_cores": max(
            (part.cores for script in one.scripts for part in script.parts if isinstance(part, Work)), default=0.0
        ),
        "computing_cores": setting.computing.cores,
        "share": setting.computing.share,
        "ring_us": 1e6 * ring.round,
        "ring_first_us": 1e6 * ring.first,
        "ring_byte_ns": 1e9 * ring.byte,
        "ring_cpu_ns": 1e9 * ring.cpu,
        "trade_us": 1e6 * trade.round,
        "trade_first_us": 1e6 * trade.first,
        "trade_byte_ns": 1e9 * trade.byte,
        "trade_cpu_ns": 1e9 * trade.cpu,
        **plan_spans.forecast(replayed),
        **cell.inside,
    }


def summary(rows: Sequence[Row]) -> Row:
    """The errors of all cells, and how good the recommendations are: the worst of all (hosts, rate)."""
    errors = sorted(abs(row["error"]) for row in rows)
    lost, forecast = losses(choices(rows)), losses(choices(rows, by_steps=False))
    moved = [row["computing_now_ms"] / row["computing_ms"] for row in rows]
    return {
        "cells": len(rows),
        "median_error": median(errors),
        "worst_error": errors[-1],
        "recommended": len(lost),
        "recommended_near": sum(one <= NEAR for one in lost),
        "recommended_loses": max(lost),
        "forecast_near": sum(one <= NEAR for one in forecast),
        "forecast_loses": max(forecast),
        "computing_from": min(moved),
        "computing_to": max(moved),
    }


def losses(chosen: Sequence[tuple[Row, Row]]) -> list[float]:
    """By how much the steps of each choice are longer than those of the fastest."""
    return [one["step_ms"] / best["step_ms"] - 1 for one, best in chosen]


def choices(rows: Sequence[Row], *, by_steps: bool = True) -> list[tuple[Row, Row]]:
    """For each number of hosts and rate: the row that would be recommended, and the one that was fastest.

    Real steps of the best forecasts decide where some were taken, unless the choice is to be by forecasts alone.
    """
    found = []
    for cell in dict.fromkeys((row["hosts"], row["rate"]) for row in rows):
        here = [row for row in rows if (row["hosts"], row["rate"]) == cell]
        name = choose({row["method"]: _took(row, by_steps=by_steps) for row in here}).method
        chosen = next(row for row in here if row["method"] == name)
        found.append((chosen, min(here, key=lambda row: row["step_ms"])))
    return found


def _took(row: Row, *, by_steps: bool) -> Took:
    tried = row.get("tried_ms") if by_steps else None
    return Took(row["predicted_ms"], row["codec_ms"] + row["overhead_ms"], tried or None)  # older rows have none
