"""Shards: what an exchange of one shard is told about its step."""

from __future__ import annotations

import torch
from battery import vector

from thinwire import Comm, Context, Key, Layout
from thinwire.exchange.shards import shards

LAYOUT = Layout(("w", "b"), ((60, 30), (133,)))


def test_a_shard_has_its_own_part_of_the_model_before_the_step() -> None:
    model = vector(LAYOUT.numel)
    ctx = Context(Comm(0, 4), LAYOUT, Key(step=3), lr=0.1, before=model, motion=(2.0, 1.0))
    cuts = shards(LAYOUT, 4)
    parts = [cut.context(ctx) for cut in cuts]
    assert torch.equal(torch.cat([part.before for part in parts if part.before is not None]), model)
    for cut, part in zip(cuts, parts, strict=True):
        assert part.before is not None
        assert part.before.numel() == part.layout.numel == cut.stop - cut.start
        assert (part.lr, part.motion, part.key.step) == (0.1, (2.0, 1.0), 3)


def test_there_may_be_no_model() -> None:
    ctx = Context(Comm(0, 4), LAYOUT, Key())
    assert all(cut.context(ctx).before is None for cut in shards(LAYOUT, 4))


def test_no_two_shards_or_hops_draw_the_same_noise() -> None:
    ctx = Context(Comm(0, 4), LAYOUT, Key())
    keys = [cut.context(ctx, hop).key for cut in shards(LAYOUT, 4) for hop in (0, 1)]
    assert len(set(keys)) == len(keys)
