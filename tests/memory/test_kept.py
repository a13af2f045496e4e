"""Residuals as they are stored: by tensor, in 8 bits or exactly."""

from __future__ import annotations

import pytest
import torch
from battery import vector

from thinwire import Key, Layout
from thinwire.memory.kept import BLOCK, KINDS, Int8, Kept

LAYOUT = Layout(("a", "b", "c", "none"), ((300,), (5, 1), (700,), (0,)))
CPU = torch.device("cpu")


def filled(kind: type[Kept]) -> Kept:
    kept = kind(LAYOUT, 3, CPU)
    for row in range(3):
        kept.write(row, LAYOUT.names, vector(LAYOUT.numel, seed=row), Key(step=row))
    return kept


@pytest.mark.parametrize("kind", KINDS.values())
def test_some_tensors_are_changed_and_the_others_stay_to_the_bit(kind: type[Kept]) -> None:
    kept = filled(kind)
    assert (kept.read(1, LAYOUT.names) - vector(LAYOUT.numel, seed=1)).abs().max() < 0.05
    before = {name: {part: t.clone() for part, t in kept.parts(name).items()} for name in LAYOUT.names}
    some = kept.read(1, ("a", "c"))
    assert torch.equal(some, torch.cat([kept.read(1, LAYOUT.names)[:300], kept.read(1, LAYOUT.names)[305:]]))
    kept.write(1, ("a", "c"), some + 1, Key(step=9))
    now = kept.read(1, LAYOUT.names)
    assert (torch.cat([now[:300], now[305:]]) - some - 1).abs().max() < 0.05
    for name in LAYOUT.names:
        for part, t in kept.parts(name).items():
            for row in range(3):
                assert torch.equal(t[row], before[name][part][row]) == (row != 1 or name in ("b", "none")), (
                    name,
                    part,
                )


@pytest.mark.parametrize("kind", KINDS.values())
def test_what_is_added_starts_at_zero_and_what_it_takes_is_what_it_says(kind: type[Kept]) -> None:
    kept = filled(kind)
    grown = kept.with_more({"d": 17})
    assert torch.equal(grown.read(2, LAYOUT.names), kept.read(2, LAYOUT.names))
    assert not grown.read(2, ("d",)).any()
    for one in (kept, grown):
        whole = {t.untyped_storage().data_ptr(): t for name in ("a", "c") for t in one.parts(name).values()}
        assert one.nbytes == sum(t.untyped_storage().nbytes() for t in whole.values())


def test_eight_bits_are_right_on_average_and_blocks_end_with_tensors() -> None:
    kept = Int8(LAYOUT, 1, CPU)
    x = vector(LAYOUT.numel)
    x[300:305] = 1e-6 * torch.arange(5)  # beside large ones, but with a scale of its own
    total = torch.zeros(LAYOUT.numel)
    for step in range(200):
        kept.write(0, LAYOUT.names, x, Key(step=step))
        total += kept.read(0, LAYOUT.names)
    scale = x[:BLOCK].abs().max() / 127
    assert (total / 200 - x)[:BLOCK].abs().max() < 4 * scale / (4 * 200) ** 0.5
    assert (kept.read(0, ("b",)) - x[300:305]).abs().max() < 1e-7
