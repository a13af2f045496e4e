"""A forced tier reaches the C++ outside the passes, too: selection, transforms, entropy codes and checksums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import NATIVE, vector

import thinwire.kernels.cpu._cpu as _cpu
from thinwire import Key, Layout, kernels
from thinwire.codecs import native, rans
from thinwire.compressors import Eden
from thinwire.kernels import dct, hadamard, selection
from thinwire.kernels.cpu import VECTORS, _dct, _hadamard, _topk

SYMBOLS = torch.arange(4096, dtype=torch.int64).remainder(5).to(torch.uint8)
CUT = hadamard.Blocking(2000, 512)
WORDS = hadamard.streams(Key(seed=1), 1)


class Spy:
    """A module whose calls are kept with their last argument."""

    def __init__(self, module: Any, place: int) -> None:
        self.module, self.place, self.heard = module, place, dict[str, Any]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.heard[name] = arguments[self.place]
            return getattr(self.module, name)(*arguments)

        return call


@pytest.fixture
def spies(monkeypatch: pytest.MonkeyPatch) -> list[Spy]:
    made = [Spy(_topk, -1), Spy(_dct, -1), Spy(_hadamard, -1), Spy(native.codes(), -1), Spy(_cpu, 0)]
    places = ["selection._topk", "dct._dct", "hadamard._hadamard", "rotated_codes._hadamard"]
    for place, spy in zip(places, [*made[:3], made[2]], strict=True):
        monkeypatch.setattr(f"thinwire.kernels.cpu.{place}", spy)
    monkeypatch.setattr(rans, "codes", lambda: made[3])
    monkeypatch.setattr("thinwire.kernels.cpu._cpu", made[4])
    return made


def use_the_table() -> None:
    x = vector(2000)
    selection.top(x, 5)
    selection.top_blocks(x, 100, 5)
    selection.over(x, 1.0)
    selection.sampled_threshold(x, 5, Key(seed=1))
    selection.merge(selection.top(x, 3), selection.top(x, 2))
    selection.subset(Key(seed=1), 100, 7)
    dct.dct(x.view(5, 20, 20).clone())
    hadamard.hadamard(x[:1024].clone(), 1024)
    hadamard.unrotate(hadamard.rotate(x, CUT, WORDS), CUT, WORDS)
    payload = Eden().encode(x)
    Eden().decode(payload, Layout.flat(2000))


def use_everything() -> None:
    use_the_table()
    room, back = torch.empty(8192, dtype=torch.uint8), torch.empty_like(SYMBOLS)
    rans.decode(room[: rans.encode(SYMBOLS, room)], back, 8)
    data = torch.zeros(64, dtype=torch.uint8)
    tier = kernels.select(data)
    tier.seal(data, bytes(28))
    tier.sealed(data)
    tier.total(data)


@pytest.mark.parametrize("tier", NATIVE)
def test_every_call_is_told_what_the_tier_may_use(tier: str, spies: list[Spy]) -> None:
    with kernels.force(tier):
        use_everything()
    top, cosine, rotated, coded, passes = (spy.heard for spy in spies)
    isa = tier.removeprefix("cpu-")
    assert top.keys() == {"top", "top_blocks", "over", "merge", "subset"}
    assert {top[name] for name in ("top", "top_blocks", "over")} == {VECTORS[isa]}
    assert cosine == {"sandwich": VECTORS[isa]}
    assert rotated == dict.fromkeys(
        ("peak", "hadamard", "rotate", "unrotate_add", "encode", "decode_add"), VECTORS[isa]
    )
    assert coded == dict.fromkeys(("rans_encode", "rans_decode"), isa == "avx512")
    assert set(passes.values()) == {isa}
    assert {"total", "seal", "sealed"} <= set(passes)


def test_the_forced_reference_never_reaches_cpp(spies: list[Spy]) -> None:
    with kernels.force("reference"):
        use_the_table()
    *operations, passes = (spy.heard for spy in spies)
    assert operations == [{}] * len(operations)
    assert passes.keys() <= {"total", "seal", "sealed"}  # a payload's checksum, not what the payload holds
