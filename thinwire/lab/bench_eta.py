"""The library's eta beside a grid of etas, on quadratics: DeepSqueeze and CHOCO-SGD, six compressors, two graphs.

    f_i(x) = 1/2 (x - c_i)' A_i (x - c_i),    A_i = R R' + I/2 with R Gaussian of variance 1/d

"differ": every rank has its own A_i and c_i, and gradients are exact. "alike": all ranks have the same, and gradients
carry Gaussian noise of length sqrt(d). A row is one run: the distance of the mean model to the optimum of the mean,
over that optimum's length, root mean square over the last fifth of the steps; and the same of the ranks' own models.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import thinwire as tw
from thinwire.exchange.mix import Mix
from thinwire.lab.records import Row
from thinwire.lab.swarm import Swarm

GRAPHS = {"ring": 8, "torus": 16}
METHODS = ("deepsqueeze", "choco-sgd")
COMPRESSORS = ("qsgd:bits=4", "scaled-sign", "one-bit", "topk:ratio=0.2", "topk:ratio=0.1", "int:bits=4,block=32")
ETAS = (None, 0.05, 0.1, 0.3, 0.5, 1.0)
JUDGES = {"": "the mean model", "_ranks": "the ranks' own models, root mean square"}
"""What is judged, by the end of the names of its figures."""
SIZE = 64
LOST = 1e6  # of one weight


class Quadratics:
    """One quadratic per rank."""

    def __init__(self, n: int, *, differ: bool, seed: int = 0) -> None:
        self.g = torch.Generator().manual_seed(seed)
        roots = torch.randn(n, SIZE, SIZE, generator=self.g) / SIZE**0.5
        self.a = roots @ roots.mT + 0.5 * torch.eye(SIZE)
        self.c = torch.randn(n, SIZE, generator=self.g)
        if not differ:
            self.a, self.c = self.a[:1].repeat(n, 1, 1), self.c[:1].repeat(n, 1)
        self.noise = 0.0 if differ else 1.0
        pulls = torch.einsum("nij,nj->i", self.a, self.c) / n
        self.optimum = torch.linalg.solve(self.a.mean(0), pulls)

    def grads(self, models: Tensor) -> Tensor:
        """Every rank's, at its own model."""
        exact = torch.einsum("nij,nj->ni", self.a, models - self.c)
        return exact + self.noise * torch.randn(exact.shape, generator=self.g)


def rows(lr: float, steps: int) -> Iterator[Row]:
    """One row for each graph, kind of ranks, method, compressor and eta."""
    for graph, n in GRAPHS.items():
        for ranks in ("differ", "alike"):
            for method in METHODS:
                for c in COMPRESSORS:
                    for eta in ETAS:
                        given = "" if eta is None else f",eta={eta}"
                        mix = tw.method(f"{method}:compressor=({c}),topology={graph}{given}").exchange
                        assert isinstance(mix, Mix)
                        head: Row = {"graph": graph, "n": n, "ranks": ranks, "method": method, "compressor": c}
                        yield {**head, "given": eta, **run(mix, n, ranks == "differ", lr, steps)}


def run(mix: Mix, n: int, differ: bool, lr: float, steps: int) -> Row:
    """Train from zero. Where eta follows the step, "eta" is that of the mean ratio in the last fifth."""
    task = Quadratics(n, differ=differ)
    swarm = Swarm(mix, n, torch.zeros(SIZE))
    last = steps - steps // 5
    mean = own = ratio = 0.0
    for step in range(steps):
        updates = -lr * task.grads(swarm.models)
        moved = swarm.models + updates
        swarm.step(updates)
        if not swarm.models.abs().max() < LOST:
            return {"lr": lr, "steps": steps, "eta": None, "error": None, "error_ranks": None}
        if step >= last:
            mean += float((swarm.mean - task.optimum).square().sum()) / (steps - last)
            own += float((swarm.models - task.optimum).square().sum(1).mean()) / (steps - last)
            ratio += float((updates.norm(dim=1) / moved.norm(dim=1)).mean()) / (steps - last)
    size = float(task.optimum.square().sum())
    errors = {"error": (mean / size) ** 0.5, "error_ranks": (own / size) ** 0.5}
    return {"lr": lr, "steps": steps, "eta": mix.step(n, min(1.0, ratio)), **errors}


def summary(rows: list[Row]) -> list[Row]:
    """One row for each cell: the library's eta, and for the mean model and for the ranks' own models its error, the
    best of the grid, and the ratio of the errors."""
    cells: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault(tuple(row[name] for name in ("graph", "ranks", "method", "compressor")), []).append(row)
    return [_cell(some) for some in cells.values()]


def _cell(rows: list[Row]) -> Row:
    own = next(row for row in rows if row["given"] is None)
    cell = {name: own[name] for name in ("graph", "ranks", "method", "compressor", "eta")}
    for judge in JUDGES:
        error = f"error{judge}"
        best = min((row for row in rows if row["given"] and row[error]), key=lambda row: row[error])
        times = own[error] / best[error] if own[error] else None
        cell |= {error: own[error], f"best_eta{judge}": best["given"]}
        cell |= {f"best_error{judge}": best[error], f"times{judge}": times}
    return cell
