"""What the engine adds to a step per bucket: 40 buckets of 1 KB, in microseconds of processor time, and in calls.

python benchmarks/overhead.py [FOLDER ...] [--method sgd]

Every folder holds a `thinwire` package, and this checkout is the default: name two to compare them. They take turns,
so that what else runs on the machine disturbs them alike. It is processor time and not time on the wall, because the
engine's threads run beside the training loop, and because the machine may be busy. What a step costs without the
engine is taken off, and the median of many steps counts. One rank shows the engine alone; with two, what
torch.distributed takes for a message is part of it: "bare" is a hook per gradient that sums it with
`dist.all_reduce(async_op=True)`, and nothing else, so that no engine could take less. Calls are those of functions in
Python or C from Python, in all threads of a rank, with those of the model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKETS, WIDTH, STEPS, WARM, TURNS = 40, 16, 100, 5, 3
HERE = Path(__file__).resolve()
Row = tuple[float, float, float]


def measured(say: object, folder: str, method: str) -> Row:
    """Microseconds of processor time per bucket on this rank, those of bare sums, and calls."""
    import thinwire as tw  # noqa: PLC0415  (whose package it is depends on the folder)

    assert Path(tw.__file__).resolve().is_relative_to(Path(folder).resolve()), tw.__file__
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BUCKETS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(4, WIDTH)
    made = tw.method(method)
    made = tw.Method(made.exchange, sync=made.sync, overlap=tw.Overlap(bucket_mb=4 * WIDTH**2 / 2**20))

    def steps(count: int, between: Callable[[], None] = lambda: None) -> float:
        spent = []
        for _ in range(count):
            before = time.process_time()
            optimizer.zero_grad()
            torch.autograd.backward(model(x).square().mean())
            between()
            optimizer.step()
            spent.append(time.process_time() - before)
        return statistics.median(spent)

    steps(WARM)
    alone = steps(STEPS)
    with Bare(model) as summed:
        steps(WARM, summed)
        bare = steps(STEPS, summed)
    with tw.attach(model, optimizer, made, min_size=0) as wire:
        assert len(wire.plan().parcels) == BUCKETS
        steps(WARM)
        spent = steps(STEPS)

    def counted() -> None:
        with tw.attach(model, optimizer, made, min_size=0):
            steps(WARM)
            calls.clear()
            steps(WARM)
            counts.append(calls.total())

    calls: Counter[int] = Counter()
    counts: list[int] = []
    _profiled(counted, calls)
    return 1e6 * (spent - alone) / BUCKETS, 1e6 * (bare - alone) / BUCKETS, counts[0] / WARM / BUCKETS


class Bare:
    """Sums that torch.distributed is asked for as gradients come; calling it waits for them."""

    def __init__(self, model: nn.Module) -> None:
        self._under_way: list[tuple[Any, Tensor]] = []
        self._hooks = [p.register_post_accumulate_grad_hook(self._launch) for p in model.parameters()]

    def _launch(self, p: Tensor) -> None:
        assert p.grad is not None
        self._under_way.append((dist.all_reduce(p.grad, async_op=True), p.grad))

    def __call__(self) -> None:
        """Wait for all sums, and make means of them."""
        for work, grad in self._under_way:
            work.wait()
            grad.div_(dist.get_world_size())
        self._under_way.clear()

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


def _profiled(run: Callable[[], None], calls: Counter[int]) -> None:
    """Count the calls of this thread and of those that it starts, by thread."""

    def note(frame: Any, event: str, arg: Any) -> None:
        if event in {"call", "c_call"}:
            calls[threading.get_ident()] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def child(folder: str, method: str, ranks: int) -> None:
    """Measure the package in a folder, which is the working directory, and print."""
    from thinwire.lab.launch import launch  # noqa: PLC0415

    rows: list[Row] = launch(measured, ranks, folder, method)
    print(*(statistics.mean(column) for column in zip(*rows, strict=True)))


def main() -> None:
    """Let the packages take turns."""
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("folders", nargs="*", default=[str(HERE.parents[1])])
    read.add_argument("--method", default="sgd")
    read.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    given = read.parse_args()
    if given.ranks:
        child(given.folders[0], given.method, given.ranks)
        return
    found: dict[tuple[str, int], list[Row]] = {}
    for _ in range(TURNS):
        for folder in given.folders:
            for ranks in (1, 2):
                command = [sys.executable, str(HERE), folder, "--method", given.method, "--ranks", str(ranks)]
                environment = {**os.environ, "PYTHONPATH": folder}
                said = subprocess.run(
                    command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
                )
                spent, bare, calls = (float(word) for word in said.stdout.split()[-3:])
                found.setdefault((folder, ranks), []).append((spent, bare, calls))
    for (folder, ranks), rows in found.items():
        spent, bare, calls = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{folder}: {given.method}, ranks {ranks}: {spent:.0f} us of processor time per bucket, "
            f"bare {bare:.0f}, {calls:.0f} calls"
        )


if __name__ == "__main__":
    main()
