"""Any codec with any compressor of integer symbols, over every exchange: the numbers are those of plain fields."""

from __future__ import annotations

import pytest
import torch
from battery import LAYOUT, vector

from thinwire import Channel, Key, Layout, methods
from thinwire.codecs import Codec, EliasDense, EliasSparse, GolombRuns, Huffman, Rans
from thinwire.compressors import Identity, IntBlock, KLevel, LaqGrid, NaturalDithering, Qsgd, ScaledSign, TernGrad
from thinwire.core.coded import Coded, SymbolCompressor
from thinwire.core.compressor import encode_with_feedback
from thinwire.core.exchange import Exchange
from thinwire.exchange import AllGather, ScatterGather
from thinwire.exchange.hierarchical import Hierarchical
from thinwire.lab.world import World
from thinwire.memory import ErrorFeedback

CODECS: list[Codec] = [Rans(), Huffman(), EliasDense(), EliasSparse("gamma"), GolombRuns(rice=True)]
COMPRESSORS: list[SymbolCompressor] = [
    Qsgd(bits=1),
    Qsgd(bits=4),
    Qsgd(bits=8, symmetric=False),
    Qsgd(levels=4, norm="l2"),
    TernGrad(),
    NaturalDithering(),
    KLevel(),
    IntBlock(),
    LaqGrid(),
    ScaledSign(),
]
each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.id)


@each_codec
@pytest.mark.parametrize("c", COMPRESSORS, ids=lambda c: c.id)
def test_a_codec_changes_the_bytes_and_not_the_numbers(codec: Codec, c: SymbolCompressor) -> None:
    coded = Coded(c, codec)
    for kind in ("gauss", "heavy", "zero", "one-hot"):
        x = vector(LAYOUT.numel, kind)
        payload = coded.encode(x, LAYOUT, Key(seed=3))
        plain = c.decode(c.encode(x, LAYOUT, Key(seed=3)), LAYOUT)
        assert torch.equal(coded.decode(payload, LAYOUT), plain)
        assert payload.body.numel() <= coded.nbytes(LAYOUT)


@pytest.mark.parametrize("c", COMPRESSORS, ids=lambda c: c.id)
def test_feedback_around_a_codec_is_feedback_without_it(c: SymbolCompressor) -> None:
    """Bit for bit: the pass that makes the symbols keeps the error, and so does decoding what was sent."""
    x, before = vector(LAYOUT.numel, "heavy"), vector(LAYOUT.numel, "gauss", seed=1)
    residuals = []
    for encoder in (c, Coded(c, Rans()), Coded(c, Huffman())):
        e = before.clone()
        payload = encode_with_feedback(encoder, x, e, LAYOUT, Key(seed=3), alpha=0.5, beta=0.75)
        assert torch.equal(e, before * 0.75 + (x - encoder.decode(payload, LAYOUT)))
        residuals.append(e)
    for e in residuals[1:]:
        assert torch.equal(e, residuals[0])


def test_a_compressor_without_symbols_is_refused() -> None:
    with pytest.raises(TypeError, match="has no integer symbols for a codec; leave the codec out"):
        Channel(Identity(), codec=Rans())


@each_codec
@pytest.mark.parametrize("exchange", ["all-gather", "scatter-gather", "hierarchical"])
def test_payloads_of_unequal_size_travel(codec: Codec, exchange: str) -> None:
    """Ranks with dense, sparse, heavy and no gradients: all get the bits that plain fields give."""

    def through(channel: Channel) -> Exchange:
        kinds = {
            "all-gather": AllGather(channel),
            "scatter-gather": ScatterGather(channel),
            "hierarchical": Hierarchical(AllGather(channel), local=2),
        }
        return kinds[exchange]

    q, memory, layout = Qsgd(levels=4, norm="l2"), ErrorFeedback(0.2, 0.9), Layout.flat(3001)
    coded, plain = (World(through(channel), layout) for channel in (Channel(q, memory, codec), Channel(q, memory)))
    for step in range(3):
        xs = [vector(3001, kind, seed=step) for kind in ("gauss", "one-hot", "heavy", "zero")]
        assert torch.equal(coded.step(xs), plain.step(xs))
    if not isinstance(codec, EliasDense):
        assert coded.traffic[0].bytes < plain.traffic[0].bytes


def test_the_headline() -> None:
    """ECQ-SGD with an entropy code, scales included, sends 40 times less than float32: 4 levels, blocks of 512."""
    n = 1 << 17
    sent = {}
    for code in ("bits", "huffman", "rans"):
        world = World(methods.ecq_sgd(exchange="all-gather", code=code).exchange, Layout.flat(n), n=2)
        for step in range(3):
            world.step([vector(n, seed=2 * step + r) for r in range(2)])
        sent[code] = 8 * world.traffic[0].bytes / 3 / n
    assert sent["bits"] == pytest.approx(4.0625, rel=0.01)
    assert sent["huffman"] <= 1.05
    assert sent["rans"] <= 0.83


def test_qsgd_elias() -> None:
    """Bits per element with the scales of blocks of 512 are as the docstring says."""
    n, sent = 1 << 17, []
    for m in (methods.qsgd_elias(), methods.qsgd_elias("sparse"), methods.qsgd_elias("sparse", levels=1)):
        world = World(m.exchange, Layout.flat(n), n=2)
        world.step([vector(n, seed=r) for r in range(2)])
        sent.append(8 * world.traffic[0].bytes / n)
    assert sent == pytest.approx([2.98, 1.1, 0.47], rel=0.05)
    with pytest.raises(ValueError, match="write levels=127"):
        methods.qsgd_elias(block=None)
    with pytest.raises(ValueError, match="write form='dense' or 'sparse'"):
        methods.qsgd_elias("other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="write code='bits' or 'rans' or 'huffman'"):
        methods.qsgd(code="zip")  # type: ignore[arg-type]
