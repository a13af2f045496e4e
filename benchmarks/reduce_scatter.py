"""A reduce-scatter of one FSDP unit over shaped links: gloo's own, an all-to-all in float32, and compressed ones.

python benchmarks/reduce_scatter.py, as root: writes benchmarks/data/reduce-scatter.csv. Four hosts of the network lab
have uplinks of 100 Mbit/s. All take turns; a round starts at a barrier and ends when the slowest rank has ended.
Bytes are those that the busiest host put on its wire, headers of packets included. `residual_bytes` is what residuals
take per rank, where the rank's own shard of the gradient takes 4 bytes per element of a row.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from thinwire.compressors import Cast, Identity, IntBlock
from thinwire.core.types import Context, Key, Layout
from thinwire.engine.reduce_scatter import Drivers
from thinwire.exchange import ReduceScatter
from thinwire.lab.bench_hosts import over_ranks
from thinwire.lab.launch import Say, launch
from thinwire.lab.net import Network
from thinwire.lab.net.shaping import transmitted
from thinwire.lab.records import Row, quantiles, save

HOSTS, RATE = 4, "100mbit"
ELEMENTS = 4 << 20  # of the unit's gradient
TURNS, ROUNDS = 2, 3  # rounds per turn are timed, after one that is not
HOWS = (
    ReduceScatter(Identity()),
    ReduceScatter(Cast("bf16")),
    *(ReduceScatter(IntBlock(bits=bits), residual=kept) for bits in (8, 4) for kept in ("none", "int8", "float32")),
)
OWN = "gloo's own, float32"
FILE = Path(__file__).parent / "data" / "reduce-scatter.csv"


def measure(say: Say) -> list[Row]:
    """One row per contestant."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # gloo's own has a new name, which older releases lack
    n, rank = dist.get_world_size(), dist.get_rank()
    x = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))
    truth = x.clone()
    dist.all_reduce(truth)
    truth = truth.view(n, -1)[rank] / n
    contestants = {OWN: (_own(x, n), 0), **{how.id: _ours(how, x) for how in HOWS}}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    sent, errors = dict.fromkeys(contestants, 0.0), dict.fromkeys(contestants, 0.0)
    for turn in range(TURNS):
        for name, (call, _) in contestants.items():
            if rank == 0:
                say((turn, name))
            call()
            dist.barrier()
            before = transmitted()
            for _ in range(ROUNDS):
                dist.barrier()
                start = time.perf_counter()
                out = call()
                times[name] += over_ranks([time.perf_counter() - start], dist.ReduceOp.MAX)
            dist.barrier()
            sent[name] += over_ranks([transmitted() - before], dist.ReduceOp.MAX)[0]
            errors[name] = over_ranks([float((out - truth).norm() / truth.norm())], dist.ReduceOp.MAX)[0]
    own = quantiles(times[OWN])[1]
    return [_row(name, times[name], sent[name], errors[name], contestants[name][1], own) for name in contestants]


def _own(x: torch.Tensor, n: int) -> Callable[[], torch.Tensor]:
    out = torch.empty(x.numel() // n)

    def call() -> torch.Tensor:
        dist.reduce_scatter_tensor(out, x.clone())
        return out / n

    return call


def _ours(how: ReduceScatter, x: torch.Tensor) -> tuple[Callable[[], torch.Tensor], int]:
    world = dist.group.WORLD
    assert world is not None
    driver = Drivers().of(world)
    n = driver.comm.size
    rows, layout = x.view(n, -1).unbind(), Layout(("w",), ((x.numel() // n,),))
    kept, step = how.kept(layout, n, torch.device("cpu")), iter(range(1 << 30))

    def call() -> torch.Tensor:
        ctx = Context(driver.comm, layout, Key(0, next(step), dist.get_rank()))
        return driver.run(how(rows, kept, layout.names, ctx, 1 / n))

    return call, 0 if kept is None else kept.nbytes


def _row(name: str, times: list[float], sent: float, error: float, kept: int, own: float) -> Row:
    low, middle, high = quantiles(times)
    return {
        "reduce_scatter": name,
        "hosts": HOSTS,
        "rate": RATE,
        "elements": ELEMENTS,
        "rounds": len(times),
        "ms": 1e3 * middle,
        "ms_p20": 1e3 * low,
        "ms_p80": 1e3 * high,
        "tx_bytes": round(sent / len(times)),
        "bits_per_element": 8 * sent / len(times) / ELEMENTS,
        "relative_error": error,
        "residual_bytes": kept,
        "speedup_over_gloo": own / middle,
    }


if __name__ == "__main__":
    with Network(HOSTS, RATE) as network:
        found = launch(measure, HOSTS, timeout=1800.0, hosts=network)[0]
    save(FILE, found)
    for row in found:
        print(f"{row['reduce_scatter']:<64} {row['ms']:>8.1f} ms {row['tx_bytes']:>12,} bytes per rank")
