"""QSGD's speed-ups on 2 to 16 GPUs, net by net: a rate is fitted to one cell of its table 1, and judged on the rest.

The paper trained with CNTK on one EC2 p2.16xlarge, 16 GPUs of 8 K80 cards over PCIe, without NCCL, so that what a GPU
sends passes the host's memory. No account says how fast that is. Two networks bracket it: "own link", on which every
GPU has the rate to itself, and "shared bus", of which each of P GPUs has a P-th part. Both are fitted to AlexNet on 8
GPUs, 2.05 times, where they are the same, and differ on other numbers of GPUs.

32 bits are summed in a ring; QSGD exchanges shards, quantised both ways, with tensors below 10,000 elements in
float32, as the paper has it. What a step sends leaves after backward: nothing overlaps. Computing takes the net's
operations, three times those of the forward pass, at 1.3 TFLOP/s, 30% of what NVIDIA's data sheet gives half a K80,
for all nets; images per GPU and step are 64 for AlexNet, which is the paper's 1024 on 16, and assumed for the others.

Reference: Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and
encoding", NeurIPS 2017, arXiv 1610.02132, table 1 and section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import ClassVar, NamedTuple, final

import thinwire as tw
from thinwire.lab.records import Row
from thinwire.lab.reproduce.model_costs import QSGD, costs
from thinwire.lab.reproduce.modelled import Claim, Job, Modelled, Rows, at_end, only, rate_for
from thinwire.lab.reproduce.panels import Line, Panel, draw
from thinwire.lab.reproduce.qsgd_nets import NETS
from thinwire.sim import Load, foresee

CARD = "K80"
FLOPS = 1.3e12
LATENCY = "20us"
SMALL = 10_000  # elements below which a tensor is not quantised
GPUS = (2, 4, 8, 16)
TABLE = 8  # GPUs of the paper's table
METHODS = {"32-bit": "sgd", "QSGD": "qsgd"}
NETWORKS = ("own link", "shared bus")
FITTED = ("alexnet", TABLE)


class Net(NamedTuple):
    """Bits of QSGD, images per GPU and step, and the published speed-ups by GPUs."""

    bits: int
    batch: int
    published: dict[int, float]
    projected: bool = False


CASES = {
    "alexnet": Net(4, 64, {8: 2.05, 16: 2.5}),
    "vgg19": Net(4, 16, {8: 2.25}, projected=True),
    "resnet152": Net(8, 16, {8: 1.56, 16: 1.8}),
    "resnet50": Net(4, 32, {8: 1.26}),
    "bn-inception": Net(4, 32, {8: 1.16}, projected=True),
    "resnet110": Net(4, 16, {8: 1.10}),
}


def seconds(net: str) -> float:
    """Computing of a step."""
    return 3 * sum(one.flops for one in NETS[net]()) * CASES[net].batch / FLOPS


def step(net: str, name: str, gpus: int, rate: float) -> float:
    """Seconds of a step on GPUs with this rate each."""
    bits = CASES[net].bits
    plain = name == "32-bit"
    done = foresee(
        tw.method("sgd" if plain else f"qsgd:bits={bits}"),
        at_end(Load.of(NETS[net](), seconds(net), "cuda")),
        gpus,
        steps=2,
        network=tw.Network(rate, LATENCY),
        costs=costs(None if plain else QSGD[bits], CARD),
        min_size=SMALL,
    )
    return done.step


def gain(net: str, gpus: int, rate: float) -> float:
    """Of QSGD over 32 bits."""
    return step(net, "32-bit", gpus, rate) / step(net, "QSGD", gpus, rate)


@cache
def fitted() -> float:
    """The rate of one GPU of eight that gives AlexNet's speed-up."""
    net, gpus = FITTED
    found = rate_for(CASES[net].published[gpus], partial(gain, net, gpus))
    assert found is not None, "the speed-up lies between 1 and 8"
    return found


def rows_of(net: str, names: Sequence[str], network: str) -> list[Row]:
    """Every number of GPUs."""
    rows = []
    for gpus in GPUS:
        rate = fitted() * (TABLE / gpus if network == "shared bus" else 1.0)
        plain = step(net, "32-bit", gpus, rate)
        for name in names:
            took = plain if name == "32-bit" else step(net, name, gpus, rate)
            told = CASES[net].published.get(gpus) if name == "QSGD" else None
            head: Row = {"network": network, "net": net, "method": name, "gpus": gpus, "gbit": rate / 1e9}
            head |= {"bits": 32 if name == "32-bit" else CASES[net].bits, "batch": CASES[net].batch}
            head |= {"computing_s": seconds(net), "step_s": took, "sending": 1 - seconds(net) / took}
            off = None if told is None or (net, gpus) == FITTED else plain / took / told - 1
            rows.append(head | {"gain": plain / took, "published": told, "off": off})
    return rows


def _near(net: str, gpus: int, rows: Rows) -> tuple[str, bool] | None:
    """Within 10%, or between the two networks."""
    found = [only(rows, network=network, net=net, method="QSGD", gpus=gpus) for network in NETWORKS]
    if None in found:
        return None
    gains = sorted(row["gain"] for row in found if row is not None)
    wanted = CASES[net].published[gpus]
    told = f"{gains[0]:.2f}" if gains[-1] - gains[0] < 0.005 else f"{gains[0]:.2f} to {gains[1]:.2f}"
    return told, gains[0] * 0.9 <= wanted <= gains[1] * 1.1


def _share(rows: Rows) -> tuple[str, bool] | None:
    found = [only(rows, network=network, net="alexnet", method="32-bit", gpus=16) for network in NETWORKS]
    if None in found:
        return None
    shares = [row["sending"] for row in found if row is not None]
    return " to ".join(f"{share:.0%}" for share in sorted(shares)), max(shares) > 0.8


def missed(rows: Rows) -> list[float]:
    """How far the model is off the cells that it was not fitted to, by the nearer of the two networks."""
    cells: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["off"] is not None:
            cells.setdefault((row["net"], row["gpus"]), []).append(abs(row["off"]))
    return [min(some) for some in cells.values()]


@final
@dataclass(frozen=True)
class QsgdScaling(Modelled):
    """Speed-ups by net and number of GPUs."""

    name: ClassVar[str] = "qsgd-scaling"
    paper: ClassVar[str] = "Alistarh et al. 2017, arXiv 1610.02132, table 1"
    claims: ClassVar[str] = "QSGD is up to 2.25 times faster than 32 bits on 8 GPUs, ResNet-152 on 16 GPUs 1.8 times."
    methods: ClassVar[Mapping[str, str]] = METHODS
    fields: ClassVar[tuple[str, ...]] = (
        *("network", "net", "method", "gpus", "gbit", "bits", "batch", "computing_s"),
        *("step_s", "sending", "gain", "published", "off"),
    )
    columns: ClassVar[dict[str, str]] = {
        "network": "",
        "net": "",
        "bits": "d",
        "gpus": "d",
        "gbit": ".2f",
        "computing_s": ".3f",
        "step_s": ".3f",
        "gain": ".2f",
        "published": ".2f",
        "off": "+.0%",
    }
    heads: ClassVar[Mapping[str, str]] = {
        "gpus": "GPUs",
        "gbit": "Gbit/s per GPU",
        "computing_s": "computing s",
        "step_s": "step s",
        "gain": "times 32-bit",
        "off": "model to paper",
    }
    sections: ClassVar[tuple[str, ...]] = ("results", "statements", "miss")
    claimed: ClassVar[tuple[Claim, ...]] = (
        *(
            Claim(f"{net}, {gpus} GPUs", "QSGD's speed-up, to 10%", f"{value:.2f}", partial(_near, net, gpus))
            for net, case in CASES.items()
            for gpus, value in case.published.items()
            if (net, gpus) != FITTED
        ),
        Claim("alexnet, 16 GPUs", "over 80% of a 32-bit step is communication", "> 80%", _share),
    )

    def jobs(self, methods: Sequence[str]) -> list[Job]:
        """Every net on both networks."""
        return [
            Job(f"{net}, {network}", partial(rows_of, net, methods, network)) for network in NETWORKS for net in CASES
        ]

    def told(self, row: Row) -> bool:
        """QSGD where the paper has a figure."""
        return row["published"] is not None

    def page(self, rows: Rows) -> dict[str, str]:
        """Also the miss in one sentence."""
        off = missed(rows)
        told = (
            f"Over the {len(off)} published cells that it was not fitted to, the nearer of the two networks is off by"
        )
        told += f" {median(off):.0%} in the median and {max(off):.0%} at worst." if off else ""
        return Modelled.page(self, rows) | {"miss": told}

    def plot(self, rows: Rows, path: Path) -> None:
        """Speed-up against GPUs on both networks, with the published cells as dots."""
        panels = []
        for network in NETWORKS:
            lines = []
            for at, (net, case) in enumerate(CASES.items()):
                mine = [r for r in rows if (r["network"], r["net"], r["method"]) == (network, net, "QSGD")]
                lines.append(Line(net, [r["gpus"] for r in mine], [r["gain"] for r in mine], at))
                lines.append(Line("_" + net, list(case.published), list(case.published.values()), at, marks=True))
            panels.append(Panel(f"{network}; dots: published", "GPUs", "times 32-bit SGD", lines))
        draw(panels, path)
