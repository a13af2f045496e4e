"""What holds for every registered method: ids, JSON, repr; and equal replicas, unless it exchanges models.

What holds for models is in test_gossip.py.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest
import torch
from battery import vector

import thinwire
from thinwire import Layout, Method, codecs, compressors, exchange, memory, methods, server, sync, topology
from thinwire.core.config import TYPES, from_json
from thinwire.core.method import METHODS
from thinwire.lab.world import World
from thinwire.sync import Param

NAMES = list(METHODS)
VARIANTS = [
    "atomo:form=entries",
    "atomo:form=fourier",
    "bf16",
    "choco-sgd:compressor=scaled-sign,copies=true",
    "choco-sgd:topology=(torus:rows=2),eta=0.3,every=2",
    "d-psgd:early=false,every=4",
    "d-psgd:topology=(edges:pairs=0-1 1-2)",
    "d-psgd:topology=(torus:rows=2)",
    "d-psgd:topology=one-peer",
    "dcd-psgd:compressor=(qsgd:bits=4),topology=torus",
    "deepsqueeze:compressor=(topk:ratio=0.1),eta=0.2",
    "deepsqueeze:compressor=(qsgd:levels=15,norm=l2,block=none),topology=(matching:seed=3)",
    "demo:beta=0.9,k=16,sign=false",
    "dgc:ratio=0.01,nesterov=true,clip=1,warmup=2",
    "diana:levels=4,norm=l2,block=64,alpha=0.125",
    "asgd:down=(qsgd:bits=8),servers=2",
    "double-squeeze:compressor=(topk:ratio=0.1)",
    "drive:exchange=scatter-gather",
    "ecd-psgd:topology=hypercube",
    "ecq-sgd:code=huffman",
    "ecq-sgd:exchange=all-gather",
    "ecq-sgd:exchange=all-gather,code=bits",
    "eden:bits=0.5",
    "ef-signsgd:block=64,exchange=all-gather",
    "ef21:compressor=(topk:ratio=0.1)",
    "ef21:compressor=int4",
    "ef21:compressor=one-bit",
    "gtopk:ratio=0.01,indices=packed",
    "int4:rounding=stochastic",
    "int8:block=none",
    "laq:bits=3,patience=20",
    "local-sgd:every=4,moments=mean,buffers=mean",
    "marina:ratio=0.25,p=0.5",
    "oktopk:exact_every=1",
    "one-bit-adam:warmup=1000",
    "post-local-sgd:start=0",
    "powersgd:rank=1,iterations=2",
    "pqasgd:compressor=(qsgd:bits=4),exchange=scatter-gather",
    "qsgd-elias:form=sparse",
    "qsgd-elias:form=sparse,levels=1,code=delta,block=none,exchange=scatter-gather",
    "qsgd:bits=8,exchange=all-gather",
    "qsgd:code=rans",
    "qsgd:levels=4,norm=l2",
    "qsparse-local-sgd:ratio=0.05,compressor=scaled-sign,indices=packed",
    "randomk:feedback=false",
    "rdme:ratio=0.1,p=uniform",
    "refining:bits=4,width=8,kappa=0.9",
    "signum:beta=0.99",
    "slowmo:beta=0.6,topology=one-peer",
    "sketched-sgd:ratio=0.02",
    "sparse-loco-step:k=32,block=1024",
    "sparse-loco:every=15,k=32,block=1024",
    "diloco:every=50,compressor=(topk:ratio=0.1),exchange=all-gather,on_cpu=true",
    "streaming-diloco:every=6,fragments=2,delay=3,alpha=0",
    "pipe-sgd:width=3,warmup=4,compressor=(qsgd:bits=8)",
    "srq:k=2,exchange=scatter-gather",
    "suresh-vlc:block=512",
    "terngrad:clip=none,share=false",
    "terngrad:share=false",
    "topk:block=512",
    "topk:feedback=false",
    "topk:values=fp16,indices=packed",
]
EVERY = sorted({*NAMES, *VARIANTS})
GRADIENTS = [
    name
    for name in EVERY
    if METHODS.parse(name).sync.of != Param() and METHODS.parse(name).exchange.scope != "neighbours"
]
"""Methods after which every rank has the same vector."""


def layout(n: int) -> Layout:
    """`n` elements: a matrix, a vector, and what is left."""
    rows = n // 20
    return Layout(("w", "b", "rest"), ((rows, 10), (n // 3,), (n - rows * 10 - n // 3,)))


def test_all_are_registered() -> None:
    assert {
        *("sgd", "fp16", "bf16", "qsgd", "ecq-sgd", "one-bit-sgd", "terngrad", "signsgd", "majority-vote", "signum"),
        *("ef-signsgd", "natural", "diana", "ef21", "int8", "int4", "one-bit-adam"),
        *("topk", "randomk", "dgc", "gtopk", "oktopk", "sbc", "strom", "wangni", "sketched-sgd"),
        *("d-psgd", "choco-sgd", "deepsqueeze", "dcd-psgd", "ecd-psgd"),
    } <= set(NAMES)


@pytest.mark.parametrize("name", GRADIENTS)
def test_all_ranks_end_with_the_same_finite_bits(name: str) -> None:
    for n, steps in ((0, 1), (1, 2), (700, 3), (5000, 1)):
        world = World(METHODS.parse(name).exchange, layout(n))
        for step in range(steps):
            out = world.step([vector(n, seed=4 * step + r) for r in range(4)])  # asserts that all are equal
            assert out.shape == (n,)
            assert out.isfinite().all(), n


@pytest.mark.parametrize("name", sorted({*NAMES} & {*GRADIENTS}))
def test_16_bit_gradients(name: str) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        world = World(METHODS.parse(name).exchange, layout(700))
        out = world.step([vector(700, seed=r).to(dtype) for r in range(4)])
        assert out.isfinite().all(), dtype


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_bad_element_is_not_finite_on_any_rank_and_in_no_memory(name: str) -> None:
    world = World(METHODS.parse(name).exchange, layout(5000))
    good = [vector(5000, seed=r) for r in range(4)]
    world.step(good)
    for bad in (math.nan, math.inf):
        broken = [x.clone() for x in good]
        broken[1][1234] = bad
        assert not world.step(broken)[1234].isfinite(), bad
        assert all(t.isfinite().all() for state in world.states for t in state.values()), bad
    assert world.step(good).isfinite().all()


def ours(made: Callable[..., object]) -> bool:
    """Packages that are installed beside thinwire may add methods, and run them through these tests."""
    return made.__module__.startswith("thinwire.")


@pytest.mark.parametrize("name", EVERY)
def test_methods_are_values(name: str) -> None:
    m = METHODS.parse(name)
    modules = (topology, codecs, sync, memory, exchange, compressors, server, thinwire)
    parts = {name: value for module in modules for name, value in vars(module).items()}
    parts |= {name: TYPES[name] for name in TYPES if not ours(TYPES[name])}
    assert m.id == name
    assert METHODS.parse(m.id) == m
    assert from_json(m.to_json()) == m
    assert from_json(m.to_json()).id == m.id
    assert eval(repr(m), parts) == m
    assert hash(from_json(m.to_json())) == hash(m)


@pytest.mark.parametrize("name", [name for name in NAMES if ours(METHODS[name])])
def test_the_paper_is_in_the_docstring(name: str) -> None:
    text = sys.modules[METHODS[name].__module__].__doc__ or ""
    assert "Departs from" in text
    assert "Sends" in text
    assert METHODS[name].__name__ in vars(methods)


def test_bits_on_the_wire() -> None:
    """What four ranks send in a step, over what an all-reduce of float32 sends."""
    n = 1 << 15

    def ratio(m: Method) -> float:
        world = World(m.exchange, Layout(("w",), ((n // 256, 256),)))
        world.step([vector(n, seed=r) for r in range(4)])
        return world.traffic[0].bytes / (2 * 3 * n * 4 / 4)

    assert ratio(methods.sgd()) == 1
    assert ratio(methods.bf16()) == ratio(methods.fp16()) == 0.5
    assert ratio(methods.natural()) == pytest.approx(9 / 32, rel=0.02)
    assert ratio(methods.qsgd()) == pytest.approx(4.06 / 32, rel=0.02)
    assert ratio(methods.qsgd(exchange="all-gather")) == pytest.approx(2 * 4.06 / 32, rel=0.02)
    assert ratio(methods.majority_vote()) == pytest.approx(1 / 32, rel=0.05)
    assert ratio(methods.signum()) == ratio(methods.majority_vote())
    assert ratio(methods.ef_signsgd()) == pytest.approx(1 / 32, rel=0.05)
    assert ratio(methods.terngrad()) == pytest.approx((2 + 4) / 2 / 32, rel=0.05)  # sums in -4 .. 4 take 4 bits
    assert ratio(methods.int8()) == pytest.approx(8.125 / 32, rel=0.02)


def test_words_that_are_no_choice_are_refused() -> None:
    with pytest.raises(ValueError, match=r"qsgd.*write exchange='scatter-gather' or 'all-gather'"):
        methods.qsgd(exchange="ring")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"sign decodes to numbers that do not grow .* write Channel\(ScaledSign\(\)"
    ):
        methods.ef21(compressor="sign")
