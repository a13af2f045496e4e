"""`thinwire plan --verify`: the best two and DDP for real, between the hosts of a network lab.

The hosts share this machine's cores, and the forecast is for hosts that have as many each: what it was made for is
forecast anew here, in the lab, as `thinwire bench plan` does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thinwire.lab import bench_plan
from thinwire.lab.bench_hosts import FREE
from thinwire.lab.launch import launch
from thinwire.lab.net import Network
from thinwire.lab.net.tools import check as can_build
from thinwire.lab.plan_models import BATCH, Wanted
from thinwire.lab.records import Row
from thinwire.planning.outlook import BASE, Outlook
from thinwire.planning.rivals import RIVALS

BEST = 2
BUDGET = 4.0  # seconds of timed steps of each


def check(wanted: Wanted, *, together: bool) -> None:
    """Raise before the work where it cannot be verified."""
    if together:
        raise ValueError("--verify builds hosts of its own; write thinwire plan --verify without torchrun")
    if not wanted.built:
        raise ValueError(f"{wanted.name} is given by its shapes and cannot be run; write --model mlp --verify")
    can_build()


def verify(
    found: Outlook,
    wanted: Wanted,
    rate: str,
    hear: Callable[[Any], None] = lambda news: None,
    budget: float = BUDGET,
) -> list[Row]:
    """One row for each of them: forecast, measured, and by how much the forecast missed."""
    best = [row.method for row in found.rows[:BEST]]
    job = bench_plan.Job(
        [name for name in best if name not in RIVALS],
        wanted.params,
        [rate],
        budget=budget,
        batch=wanted.batch or BATCH,
        rivals=[name for name in RIVALS if name in best or name == BASE],
        device=wanted.device,
        tries=0,
    )
    gpu = wanted.device != "cpu"
    with Network(found.hosts, FREE) as network:
        rows: list[Row] = launch(
            bench_plan.bench, found.hosts, job, timeout=3600.0, hear=hear, hosts=network, gpu=gpu
        )[0]
    return rows
