"""`thinwire plan --verify`: the recommended method, the fastest other and DDP for real, between hosts of a lab.

The hosts share this machine's cores, and the forecast is for hosts that have as many each: what it was made for is
forecast anew here, in the lab, as `thinwire bench plan` does it. Its links have the rate and the latency of the plan.
Where the kernel cannot delay packets they have the rate alone; forecasts are then for that, too, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from thinwire.core.rates import seconds
from thinwire.lab import bench_plan
from thinwire.lab.bench_hosts import FREE
from thinwire.lab.launch import launch
from thinwire.lab.net import Network
from thinwire.lab.net.tools import check as can_build
from thinwire.lab.plan_models import BATCH, Wanted
from thinwire.lab.records import Row
from thinwire.planning.outlook import BASE, Outlook
from thinwire.planning.rivals import RIVALS

BUDGET = 4.0  # seconds of timed steps of each


class Verified(NamedTuple):
    """One row for each method: forecast, measured, and by how much the forecast missed."""

    rows: list[Row]  # with the latency that links had, which is None where they could have none
    note: str = ""  # in what the links were not those of the plan


def check(wanted: Wanted, *, together: bool) -> None:
    """Raise before the work where it cannot be verified."""
    if together:
        raise ValueError("--verify builds hosts of its own; write thinwire plan --verify without torchrun")
    if not wanted.built or wanted.own:
        kind = "a model of yours" if wanted.own else "given by its shapes"
        raise ValueError(f"{wanted.name} is {kind}, and hosts here run the mlp alone; write --model mlp --verify")
    can_build()


def contestants(found: Outlook) -> list[str]:
    """Who takes steps: the recommended method, the fastest other by forecast, and DDP, each once."""
    other = next((row.method for row in found.rows if row.method != found.recommended), BASE)
    return list(dict.fromkeys([found.recommended, other, BASE]))


def verify(
    found: Outlook,
    wanted: Wanted,
    rate: str,
    latency: str,
    hear: Callable[[Any], None] = lambda news: None,
    budget: float = BUDGET,
) -> Verified:
    """Forecast and measure them between as many hosts as were planned for, on links of this rate and latency."""
    names = contestants(found)
    job = bench_plan.Job(
        [name for name in names if name not in RIVALS],
        wanted.params,
        [rate],
        budget=budget,
        batch=wanted.batch or BATCH,
        rivals=[name for name in RIVALS if name in names],
        device=wanted.device,
        tries=0,
    )
    gpu = wanted.device != "cpu"
    with _delayed(found.hosts, latency) as network:
        delay = network.latency or ("0ms" if not seconds(latency) else None)
        rows: list[Row] = launch(
            bench_plan.bench, found.hosts, job, timeout=3600.0, hear=hear, hosts=network, gpu=gpu
        )[0]
    rows = [row | {"latency": delay} for row in sorted(rows, key=lambda row: names.index(row["method"]))]
    if delay is not None:
        return Verified(rows)
    return Verified(
        rows,
        f"This kernel has no netem queue and cannot delay packets, so that steps and forecasts here are for {rate} "
        f"without the {latency} one way that the plan is for.",
    )


@contextmanager
def _delayed(hosts: int, latency: str) -> Iterator[Network]:
    """Hosts whose links delay, where the kernel can; others where it cannot."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(Network(hosts, FREE, latency if seconds(latency) else None))
        except ValueError:  # there is no netem; what was asked for has been checked
            network = stack.enter_context(Network(hosts, FREE))
        yield network
