"""PerTensor: each tensor as its option alone would have it; what is refused."""

from __future__ import annotations

import pytest
import torch
from battery import vector

from thinwire import Channel, Layout, Method
from thinwire.compressors import Identity, LowRank, Qsgd, TopK
from thinwire.core.compressor import encode_with_feedback
from thinwire.core.errors import PayloadError
from thinwire.core.per_tensor import PerTensor
from thinwire.core.types import Key
from thinwire.exchange import AllGather
from thinwire.memory import ErrorFeedback
from thinwire.methods import adaptive
from thinwire.sync import Adapt, Param, Sync

LAYOUT = Layout(("a", "b", "none", "c"), ((100, 30), (7,), (0,), (64, 64)))
KEY = Key(seed=3, step=5, rank=1, bucket=2)
MIXED = PerTensor((Qsgd(bits=8), TopK(ratio=0.5, indices="packed"), LowRank()), (("b", 1), ("c", 2)))


def test_every_tensor_is_as_its_option_has_it() -> None:
    x, e = vector(LAYOUT.numel), torch.zeros(LAYOUT.numel)
    payload = MIXED.encode(x, LAYOUT, KEY)
    whole = MIXED.decode(payload, LAYOUT, key=KEY)
    for part in MIXED.parts(LAYOUT):
        own = part.key(KEY)
        alone = part.compressor.decode(
            part.compressor.encode(x[part.start : part.stop], part.layout, own), part.layout, key=own
        )
        assert torch.equal(whole[part.start : part.stop], alone)
    assert torch.equal(encode_with_feedback(MIXED, x, e, LAYOUT, KEY).data, payload.data)
    assert torch.allclose(whole + e, x, atol=1e-6)


def test_pieces_of_a_tensor_stay_together_and_noise_differs() -> None:
    cut = LAYOUT.cut(10, 3003)
    assert [(part.layout.names[0], part.stop - part.start) for part in MIXED.parts(cut)] == [("a", 2990), ("b", 3)]
    twins = Layout(("a", "b"), ((512,), (512,)))
    c = PerTensor((Qsgd(bits=2),))
    first, second = c.decode(c.encode(vector(512).repeat(2), twins, KEY), twins, key=KEY).split(512)
    assert not torch.equal(first, second)


def test_its_id_names_options_and_choice() -> None:
    options = "qsgd:bits=8;topk:ratio=0.5,indices=packed;low-rank"
    assert MIXED.id == f"per-tensor:options=({options}),choice=(b=1;c=2)"
    assert PerTensor((Qsgd(bits=2),)).id == "per-tensor:options=(qsgd:bits=2)"


def test_another_choice_is_refused() -> None:
    other = PerTensor(MIXED.options, (("b", 1), ("c", 1)))
    with pytest.raises(PayloadError):
        other.decode(MIXED.encode(vector(LAYOUT.numel), LAYOUT, KEY), LAYOUT)
    with pytest.raises(ValueError, match=r'write TopK\(indices="packed"\)'):
        PerTensor((TopK(),))
    with pytest.raises(ValueError, match="has options 0 to 0; 'a' is to have 1"):
        PerTensor((Identity(),), (("a", 1),))
    with pytest.raises(TypeError, match="PerTensor takes compressors"):
        PerTensor(())


def test_what_cannot_be_adapted_is_refused() -> None:
    four, eight = Qsgd(bits=4), Qsgd(bits=8)
    with pytest.raises(ValueError, match="does not send qsgd:bits=4"):
        Method(AllGather(Channel(eight)), Sync(adapt=Adapt(four, (eight,))))
    with pytest.raises(ValueError, match="between two rounds of gradients"):
        Sync(of=Param(), adapt=Adapt(four, (eight,)))
    with pytest.raises(ValueError, match="write 1 or more for both, whole numbers"):
        Adapt(four, (eight,), every=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="write 1 or more for both"):
        adaptive(every=0)
    with pytest.raises(ValueError, match="write uniform=4"):
        adaptive(uniform=4.5)
    with pytest.raises(ValueError, match="write kind='bits' or 'ratio' or 'rank'"):
        adaptive(kind="levels")  # type: ignore[arg-type]
    exchange = AllGather(Channel(four, ErrorFeedback()))
    adapt = Adapt(four, (four, eight))
    assert adapt.choices == (four, eight)
    for uniform in ({}, {"a": 0}):
        assert adapt.chosen(exchange, uniform).channels[0].compressor == PerTensor((four, eight), (*uniform.items(),))
    assert adapt.chosen(exchange, {"a": 1}).channels[0].compressor == PerTensor((four, eight), (("a", 1),))
