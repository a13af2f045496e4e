"""What holds for every registered method that gossips: 64 ranks, any size, float32 models, its line in the table."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from lockstep import Quadratics
from swarms import apart, normal, together

from thinwire.cli.app import main
from thinwire.core.method import METHODS
from thinwire.exchange import Gossip, Mix
from thinwire.sync import Param

OTHERS = {"Admm", "Pairs"}  # they need more than gradients, or their own driver; see their tests
NAMES = [
    name
    for name in METHODS
    if METHODS[name]().sync.of == Param()
    and isinstance(METHODS[name]().exchange, Gossip)
    and type(METHODS[name]().exchange).__name__ not in OTHERS
]
SETTINGS = {"moniqua": "theta=16"}  # further than ranks get from each other here
SYMMETRIC = {"choco-sgd", "dcd-psgd", "ecd-psgd"}
"""What is kept about neighbours is right only where they keep the same about this rank."""
TASK = Quadratics(64, 32)


def made(name: str, *settings: str) -> Gossip:
    known = [SETTINGS[name], *settings] if name in SETTINGS else settings
    exchange = METHODS.parse(":".join(filter(None, (name, ",".join(known))))).exchange
    assert isinstance(exchange, Gossip)
    return exchange


def test_who_takes_part() -> None:
    assert {"d-psgd", "choco-sgd", "deepsqueeze", "dcd-psgd", "ecd-psgd"} <= set(NAMES)
    assert all("topology" in inspect.signature(METHODS[name]).parameters for name in NAMES)


@pytest.mark.parametrize("graph", ["ring", "exponential"])
@pytest.mark.parametrize("name", NAMES)
def test_64_ranks_train(name: str, graph: str) -> None:
    """Quadratics whose optima differ, from 2 away from that of the mean in every direction. Every rank gets near."""
    if graph == "exponential" and name in SYMMETRIC:
        with pytest.raises(ValueError, match="needs a symmetric W"):
            made(name, f"topology={graph}").check(64)
        return
    swarm = together(made(name, f"topology={graph}"), 64, TASK.optimum.float() + 2)
    start = TASK.loss(swarm.models[0].double())
    for _ in range(5):
        swarm.step([-0.1 * grad for grad in TASK.grads(swarm.models.double())])
    assert swarm.models.dtype == torch.float32
    assert TASK.loss(swarm.mean.double()) < 0.3 * start
    assert max(TASK.loss(model.double()) for model in swarm.models) < 0.5 * start
    assert swarm.distance > 1e-3  # they differ: it is gossip


@pytest.mark.parametrize("size", [0, 1, 700, 5000])
@pytest.mark.parametrize("name", NAMES)
def test_any_size(name: str, size: int) -> None:
    """Models stay finite, and where the method is `Mix` their mean is that of plain SGD, to float32."""
    exchange = made(name)
    swarm = together(exchange, 4, normal(size).float())
    for step in range(3):
        updates = 0.1 * normal(4, size, seed=1 + step).float()
        due = swarm.mean + updates.mean(0)
        swarm.step(updates)
        assert swarm.models.shape == (4, size)
        assert swarm.models.isfinite().all()
        if isinstance(exchange, Mix):
            assert torch.allclose(swarm.mean, due, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_that_agree_stay_where_they_are(name: str) -> None:
    """Exactly, if models or their differences are sent as they are; otherwise up to what compression left out."""
    swarm = together(made(name), 4, normal(700).float())
    length = float(swarm.mean.norm())
    swarm.step(torch.zeros(4, 700))
    assert swarm.distance < (0.2 if name in {"deepsqueeze", "moniqua"} else 1e-6) * length


def test_uncompressed_tensors_travel_on_the_same_graph() -> None:
    for name in NAMES:
        exchange = made(name)
        assert isinstance(exchange.plain, Gossip)
        assert exchange.plain.topology == exchange.topology
        assert exchange.plain.before_step == exchange.before_step
        swarm = apart(exchange.plain, normal(8, 40))
        before, mean = swarm.distance, swarm.mean
        for _ in range(4):
            swarm.step(torch.zeros(8, 40))
        assert swarm.distance < 0.8 * before
        assert torch.allclose(swarm.mean, mean, rtol=0, atol=1e-6)


def test_the_table_of_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)["rows"] if row["axis"] == "method"}
    assert {name: rows[name]["signal"] for name in NAMES} == dict.fromkeys(NAMES, "param")
    shown = {name: tuple(rows[name][key] for key in ("exchange", "memory", "year")) for name in NAMES}
    assert shown["d-psgd"] == ("mix", "none", 2017)
    assert shown["choco-sgd"] == ("mix", "difference", 2019)
    assert shown["deepsqueeze"] == ("mix", "ef", 2019)
    assert shown["dcd-psgd"] == ("dcd", "none", 2018)
    assert shown["ecd-psgd"] == ("ecd", "none", 2018)
    assert rows["d-psgd"]["bits_per_element"] == 32
    assert rows["deepsqueeze"]["bits_per_element"] == pytest.approx(4.06, abs=0.01)
