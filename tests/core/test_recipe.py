"""Recipes: what a method states about its optimizer, and who gets it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thinwire import Method, methods
from thinwire.core.config import from_json
from thinwire.core.memory import NoMemory
from thinwire.core.method import METHODS
from thinwire.core.recipe import Recipe
from thinwire.exchange import AllReduce
from thinwire.sync import Grad, Momentum, Sync


@pytest.mark.parametrize("name", list(METHODS))
def test_what_is_stated_follows_from_the_parts(name: str) -> None:
    """Momentum once, a step of its own where the result has no scale, Adam where Adam's momentum travels."""
    method = METHODS[name]()
    recipe = method.recipe
    kept = [channel.memory.plain for channel in method.exchange.channels]
    if any(memory != NoMemory() for memory in kept):
        assert recipe.momentum == 0
    if method.sync.of == Grad() and not method.exchange.keeps_scale:
        assert recipe.momentum == 0
        assert recipe.step(0.05) == recipe.step(0.5) < 0.02
    assert (recipe.optimizer == "1-bit adam") == (method.sync.of == Momentum())
    assert "recipe" not in method.to_json()


def test_it_survives_json_and_another_schedule_but_not_another_exchange() -> None:
    dgc = methods.dgc(ratio=0.01)
    assert dgc.recipe == Recipe(momentum=0.0)
    assert from_json(dgc.to_json()).recipe == dgc.recipe
    assert replace(dgc, sync=Sync(warmup=5)).recipe == dgc.recipe
    assert replace(dgc, exchange=AllReduce()).recipe == Recipe()
    assert Method(AllReduce()).recipe == Recipe()
    assert methods.qsgd().recipe == Recipe(momentum=0.9)


def test_it_may_depend_on_the_arguments() -> None:
    votes, means = methods.demo().recipe, methods.demo(sign=False).recipe
    assert votes.lr is not None
    assert means == Recipe(momentum=0.0)


@pytest.mark.parametrize(
    "settings", [{"optimizer": "sdg"}, {"momentum": 1.0}, {"lr": 0.0}, {"scale": -1.0}, {"lr": 0.1, "scale": 2.0}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="write"):
        Recipe(**settings)  # type: ignore[arg-type]


def test_words() -> None:
    assert Recipe().words == "SGD, momentum 0.9"
    assert methods.one_bit_adam().recipe.words == "OneBitAdam, lr 0.001"
