"""What other packages add: found by name and by class, and refused in one sentence where it could not work."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from thinwire import Channel, Comm, Context, Key, Layout, Method, compressors, methods, run, simulate
from thinwire.compressors import TopK
from thinwire.core import config, method, registry
from thinwire.core.compressor import Biased, encode_with_feedback
from thinwire.core.config import Config, from_config, make_id
from thinwire.core.slots import Slots, cut
from thinwire.core.types import State
from thinwire.exchange import AllGather, AllReduce, Exchange, ScatterGather
from thinwire.exchange.wrapper import Wrapper
from thinwire.lab.catalogue import about
from thinwire.memory import Memory, Slot
from thinwire.sim import Problem
from thinwire.sync import Period, Seen


class Half(Biased):
    """A cast to fp16, for tests to spoil."""

    def delta(self, d: int) -> float | None:
        return None

    def nbytes(self, layout: Layout) -> int:
        return 2 * layout.numel

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        body.copy_(x.half().view(torch.uint8))
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        out += weight * body.view(torch.float16).float()


@final
@dataclass(frozen=True)
class Used(Half):
    name: ClassVar[str] = "used"
    more: int = 0

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        super().write(x, layout, key, body)
        return body.numel() + self.more


@final
@dataclass(frozen=True)
class UsedFewer(Half):
    name: ClassVar[str] = "used-fewer"
    fixed_size: ClassVar[bool] = False

    def nbytes(self, layout: Layout) -> int:
        return 4 * layout.numel

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        super().write(x, layout, key, body[: 2 * layout.numel])
        return 2 * layout.numel


@pytest.mark.parametrize("more", [-2, 2])
def test_a_wrong_number_of_bytes_is_the_senders_fault(more: int) -> None:
    x = torch.ones(10)
    said = f"write of used:more={more} used {20 + more} bytes, but nbytes is 20; .* fixed_size"
    with pytest.raises(ValueError, match=said):
        Used(more).encode(x)
    with pytest.raises(ValueError, match=said):
        encode_with_feedback(Used(more), x, torch.zeros(10))
    assert torch.equal(Used().decode(Used().encode(x), Layout.flat(10)), x)
    assert UsedFewer().encode(x).body.numel() == 20


class Plain(Half):
    name: ClassVar[str] = "plain"


@dataclass
class Thawed(Half):
    name: ClassVar[str] = "thawed"


class Undecorated(Used):  # type: ignore[misc]  # of a final class, as users do
    name: ClassVar[str] = "undecorated"
    bits: int = 3


@dataclass(frozen=True)
class Nameless(Used):  # type: ignore[misc]
    bits: int = 3


@dataclass(frozen=True)
class Listed(Half):
    name: ClassVar[str] = "listed"
    grid: Any = field(default_factory=list)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Plain(), r"Plain is no frozen dataclass; write @dataclass\(frozen=True\) above the class"),
        (Thawed(), "Thawed is no frozen dataclass"),
        (Undecorated(), "Undecorated is no frozen dataclass"),
        (Nameless(), r'Nameless has no name of its own; write name: ClassVar\[str\] = "..." in the class'),
        (Listed([1, 2]), r"Listed\(grid=...\) is a list, which JSON would not bring back; write .* a tuple"),
        (Listed((1, torch.ones(2))), r"Listed\(grid=...\) is a tuple, which JSON would not bring back"),
    ],
    ids=lambda made: made.__class__.__name__,
)
def test_configs_that_json_would_not_bring_back_are_refused(made: Config, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        _ = made.id
    with pytest.raises(TypeError, match=said):
        made.to_json()


def test_numbers_of_numpy_are_pythons() -> None:
    made = methods.qsgd(bits=np.int64(3))  # type: ignore[arg-type]
    assert made == methods.qsgd(bits=3)
    assert made.to_json() == methods.qsgd(bits=3).to_json()
    made = methods.topk(ratio=np.float32(0.25))  # type: ignore[arg-type]
    assert (made.id, made) == ("topk:ratio=0.25", methods.topk(ratio=0.25))
    assert TopK(k=np.int64(7)).to_json() == TopK(k=7).to_json()  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["3", "true", "none", "1e3", "(a)", "a,b", "a=b", "a"])
def test_a_word_is_read_as_it_was_written(word: str) -> None:
    def make(inner: str = "") -> str:
        return inner

    fresh: registry.Registry[str] = registry.Registry("part", "thinwire.nothing")
    fresh.add("outer", make)
    assert fresh.parse(make_id("outer", {"inner": (word, "")})) == word


def pointed(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    def entry_points(group: str) -> list[EntryPoint]:
        return [point for point in points if point.group == group]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    monkeypatch.setattr(config, "entry_points", entry_points)


def test_a_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_add_on.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    pointed(monkeypatch, EntryPoint("mine", "broken_add_on:Mine", "thinwire.compressors"))
    said = "'mine' is broken_add_on:Mine of another package, which cannot be imported: ModuleNotFound.*not_ins"
    for _ in range(2):
        with pytest.raises(ValueError, match=said):
            compressors.get("mine")


def test_a_name_in_two_packages_is_refused_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ("thinwire.compressors.natural:Natural", "thinwire.compressors.sign:Sign")
    pointed(monkeypatch, *(EntryPoint("mine", value, "thinwire.compressors") for value in values))
    for _ in range(2):
        with pytest.raises(ValueError, match=f"'mine' is in two packages, as {values[0]} and {values[1]}; uninstall"):
            compressors.get("mine")


MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from thinwire.memory import NoMemory
from thinwire.sync import Period
@dataclass(frozen=True)
class PeriodOfAnother(Period):
    name: ClassVar[str] = "of-another"
    def steps(self, seen): return 1
def make(): raise NotImplementedError
"""


def test_json_finds_classes_of_packages_that_nobody_has_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A method stored by a package's factory is read before anything of that package is used."""
    (tmp_path / "found_add_on.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    broken = EntryPoint("a", "not_there_at_all:make", "thinwire.methods")
    pointed(monkeypatch, broken, EntryPoint("b", "found_add_on:make", "thinwire.methods"))
    assert "found_add_on" not in sys.modules
    assert from_config({"type": "PeriodOfAnother"}).name == "of-another"
    with pytest.raises(
        ValueError, match=r"unknown config 'Qsgdd'; did you mean 'Qsgd'.*; if a package of your own def"
    ):
        from_config({"type": "Qsgdd"})


def test_what_says_nothing_about_itself_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = sys.modules[__name__]
    assert about(Used) == here.__doc__
    monkeypatch.setattr(here, "__doc__", None)
    assert about(Half) == "A cast to fp16, for tests to spoil."
    assert about(pointed) == ""


def test_a_factory_in_code_without_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as notebooks on some services, and the blocks of a page."""
    monkeypatch.setattr(method, "METHODS", registry.Registry("method", "thinwire.nothing"))

    def make() -> Method:
        """What it does."""
        return methods.sgd()

    make.__module__ = "not_a_module_at_all"
    assert method.method("of-no-module")(make).__doc__ == "What it does."


@final
@dataclass(frozen=True)
class Forgetful(Memory):
    name: ClassVar[str] = "forgetful"

    def slots(self) -> Slots:
        return {"v": Slot()}

    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        state["v"] += x  # in place, as it should be
        state["norm"] = x.norm()  # for `after`
        state["v"] = state["v"] + x
        return x

    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        raise AssertionError("nothing was sent")

    def receive(self, got: Tensor, state: State) -> Tensor:
        raise AssertionError("nothing was sent")


@pytest.mark.parametrize("through", [AllGather, ScatterGather])
def test_a_state_is_changed_in_place(through: Callable[[Channel], Exchange]) -> None:
    exchange, layout = through(Channel(TopK(), Forgetful())), Layout.flat(10)

    async def worker(comm: Comm) -> Tensor:
        return await exchange(torch.ones(10), exchange.init(layout, comm), Context(comm, layout, Key(rank=comm.rank)))

    with pytest.raises(TypeError, match=r"state\['v'\] = ... would be forgotten; write state\['v'\].copy_\(...\)"):
        run(worker, 2)


def test_another_tensor_in_a_state_is_refused_however_it_is_put_there() -> None:
    state = cut({"v": torch.zeros(4)}, {"v": Slot()}, 0, 2)
    for put in (lambda: state.update(v=torch.ones(2)), lambda: state.__ior__({"v": torch.ones(2)})):
        with pytest.raises(TypeError, match="would be forgotten"):
            put()
    assert type(copy.deepcopy(state)) is dict


@final
@dataclass(frozen=True)
class Returns(Wrapper):
    name: ClassVar[str] = "returns"
    of: Exchange
    what: str = "nothing"

    @property
    def inner(self) -> Exchange:
        return self.of

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        out = await self.of(x, state, ctx)
        return out[:5] if self.what == "few" else None  # type: ignore[return-value]


@pytest.mark.parametrize(("what", "said"), [("few", r"shape \(5,\)"), ("nothing", "NoneType")])
def test_what_an_exchange_returns_is_looked_at(what: str, said: str) -> None:
    problem = Problem(lambda: nn.Linear(4, 4), lambda net, rank, step: net(torch.ones(1, 4)).sum())
    with pytest.raises(TypeError, match=f"returns returned {said}; an exchange returns a vector of 20 elements"):
        simulate(Method(Returns(AllReduce(), what)), problem, workers=2, steps=1, min_size=0)


@final
@dataclass(frozen=True)
class Odd(Period):
    name: ClassVar[str] = "odd"
    count: float | None = 0

    def steps(self, seen: Seen) -> int:
        return self.count  # type: ignore[return-value]


def test_a_period_is_a_number_of_steps() -> None:
    seen = Seen(4, 0, 0, 1.0, 1.0, 0.0, 0.0)
    for count in (0, -2, 2.5, None):
        with pytest.raises(ValueError, match="write a whole number of steps, 1 or more"):
            Odd(count).ahead(seen)
    assert Odd(3).ahead(seen) == 3
