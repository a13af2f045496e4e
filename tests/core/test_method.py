"""Configs, ids, the registry, and which compositions are refused."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, final

import pytest
import torch
from torch import Tensor

import thinwire
from thinwire import Channel, Method, Overlap, Sync, codecs, exchange, memory, methods, sync
from thinwire import compressors as axis
from thinwire.codecs import BitPack, Codec
from thinwire.comm import Comm, run
from thinwire.compressors import Cast, Identity, Natural, OneBit, Qsgd, ScaledSign, Sign, TernGrad
from thinwire.core import registry
from thinwire.core.coded import Coded
from thinwire.core.compressor import scheme
from thinwire.core.config import from_config, from_json, make_id
from thinwire.core.errors import PayloadError
from thinwire.core.method import METHODS
from thinwire.core.payload import Payload
from thinwire.core.types import Context, Key, Layout
from thinwire.exchange import AllGather, AllReduce
from thinwire.memory import Difference, ErrorFeedback
from thinwire.sync import Delta, Momentum, Param, Sgd
from thinwire.topology import Torus

EVERY = [
    methods.sgd(),
    methods.qsgd(),
    methods.qsgd(levels=4, norm="l2", block=None),
    methods.ecq_sgd(levels=4, alpha=0.2),
    methods.ecq_sgd(alpha=0.123456789012345),
    Method(
        AllGather(Channel(OneBit(), ErrorFeedback())),
        Sync(warmup=10),
        Overlap(bucket_mb=4, chunk_mb=1),
    ),
    *(Method(AllReduce(), Sync(of=s, every=8)) for s in (Param(), Momentum(), Delta(Sgd(0.5)))),
]


@pytest.mark.parametrize("m", EVERY, ids=lambda m: m.id)
def test_methods_are_values(m: Method) -> None:
    axes = (axis, codecs, exchange, memory, sync, thinwire)
    names = {name: value for module in axes for name, value in vars(module).items()}
    assert eval(repr(m), names) == m
    assert from_json(m.to_json()) == m
    assert hash(m) == hash(from_json(m.to_json()))
    if not m.id.startswith("custom-"):
        assert METHODS.parse(m.id) == m
        assert METHODS.parse(m.id).id == m.id


def test_ids() -> None:
    assert methods.ecq_sgd(levels=4, alpha=0.3).id == "ecq-sgd:alpha=0.3"
    assert methods.qsgd(4).id == "qsgd"
    assert methods.qsgd(bits=2, norm="l2").id == "qsgd:bits=2,norm=l2"
    assert METHODS.parse("ecq-sgd:levels=4,alpha=0.2") == methods.ecq_sgd()
    assert Qsgd(bits=4, norm="max").id == "qsgd:bits=4"
    assert axis.get("qsgd:bits=4,norm=max") == Qsgd(bits=4)
    assert Method(AllReduce(), Sync(warmup=3)).id.startswith("custom-")
    changed = replace(methods.qsgd(), sync=Sync(warmup=3))
    assert changed.id.startswith("custom-")  # no longer what the label says


def test_an_id_inside_an_id_stands_in_parentheses() -> None:
    inner = "topk:ratio=0.1,indices=packed"
    made = methods.deepsqueeze(compressor=inner, topology="torus:rows=2", eta=0.2)
    assert made.id == f"deepsqueeze:compressor=({inner}),topology=(torus:rows=2),eta=0.2"
    assert METHODS.parse(made.id) == made
    assert METHODS.parse("deepsqueeze:compressor=(scaled-sign)").id == "deepsqueeze:compressor=scaled-sign"
    assert methods.deepsqueeze(compressor=axis.get(inner)).id == f"deepsqueeze:compressor=({inner})"
    assert methods.d_psgd(topology=Torus(rows=2)) == methods.d_psgd(topology="torus:rows=2")
    for mistake, message in (
        ("deepsqueeze:compressor=(topk:ratio=0.1", "unknown compressor '\\(topk'"),
        ("deepsqueeze:compressor=(tpok:ratio=0.1)", "unknown compressor 'tpok'; did you mean 'topk'"),
        ("deepsqueeze:compressor=(topk:ratoi=0.1)", "'topk' has no setting 'ratoi'; did you mean 'ratio'"),
        ("deepsqueeze:compressor=topk:ratio=0.1,indices=packed", "'deepsqueeze' has no setting 'indices'"),
        ("deepsqueeze:compressor=(topk),compressor=sign", "sets compressor twice"),
        ("deepsqueeze:topology=()", "unknown topology ''; there are complete"),
    ):
        with pytest.raises(ValueError, match=message):
            METHODS.parse(mistake)


def test_commas_inside_parentheses_belong_to_the_value() -> None:
    """One comma in a value of an inner id does not end the outer one; parentheses come off one layer at a time."""

    def make(inner: str = "", k: int = 0) -> Method:
        return Method(AllReduce(), label=f"{inner} | {k}")

    fresh: registry.Registry[Method] = registry.Registry("part", "thinwire.nothing")
    fresh.add("outer", make)
    for text, label in (
        ("outer:inner=(a:b=1,c=2),k=4", "a:b=1,c=2 | 4"),
        ("outer:k=4,inner=(a:b=1,c=2)", "a:b=1,c=2 | 4"),
        ("outer: inner = (a:b=1,c=2) , k = 4", "a:b=1,c=2 | 4"),
        ("outer:inner=(a:b=(c:d=1,e=2),f=3),k=4", "a:b=(c:d=1,e=2),f=3 | 4"),
        ("outer:inner=(7)", "7 | 0"),  # a word, where 7 alone would be a number
        ("outer:inner=a:b", "a:b | 0"),
    ):
        assert fresh.parse(text).label == label
    with pytest.raises(ValueError, match="'inner=7' in 'outer:inner=7': inner is a word"):
        fresh.parse("outer:inner=7")


def test_words_that_would_be_cut_are_put_in_parentheses() -> None:
    settings = {
        "a": ("x:y=1,z=2", None),
        "b": ("plain", None),
        "c": (Qsgd(bits=4), None),
        "d": (None, 1),
        "e": (True, None),
        "f": ("same", "same"),
    }
    assert make_id("n", settings) == "n:a=(x:y=1,z=2),b=plain,c=(qsgd:bits=4),d=none,e=true"


def test_equal_configs_look_equal() -> None:
    assert TernGrad(clip=3) == TernGrad(clip=3.0)
    assert TernGrad(clip=3).to_json() == TernGrad(clip=3.0).to_json()
    assert TernGrad(clip=3).id == TernGrad(clip=3.0).id == "terngrad:clip=3"
    assert Channel(Qsgd(bits=4)).id == "channel:compressor=(qsgd:bits=4)"  # default parts are left out


def test_a_field_is_read_by_its_earlier_name() -> None:
    channel = Channel(Qsgd(bits=4), checksum=False)
    text = channel.to_json()
    assert '"checksum": false' in text
    assert Channel.from_json(text.replace('"checksum"', '"crc"')) == channel


def test_all_reduce_refuses_what_is_not_linear() -> None:
    with pytest.raises(ValueError, match=r"qsgd:bits=4 is not linear; write AllGather\(Channel\(compressor=Qsgd"):
        AllReduce(Channel(Qsgd(bits=4)))


def test_wrong_parts_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Channel\(compressor=...\) takes a Compressor; got 'qsgd'"):
        Channel("qsgd")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"AllGather takes a Channel; write AllGather\(Channel\(Qsgd\(bits=4"):
        AllGather(Qsgd(bits=4))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AllReduce takes a Channel"):
        AllReduce(Identity())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"ErrorFeedback cannot settle; write Channel\(ScaledSign\(\)"):
        Channel(Sign(), ErrorFeedback())
    with pytest.raises(TypeError, match=r"Method\(exchange=...\) takes an Exchange"):
        Method(Channel(Identity()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Qsgd has no field 'bitz'; did you mean 'bits'"):
        from_config({"type": "Qsgd", "bitz": 4})
    with pytest.raises(ValueError, match="names its class under 'type'"):
        from_config({"bits": 4})
    with pytest.raises(ValueError, match="unknown config 'Qsgdd'; did you mean 'Qsgd'"):
        from_config({"type": "Qsgdd"})


@pytest.mark.parametrize(
    "settings",
    [{"bucket_mb": 0}, {"bucket_mb": "4"}, {"chunk_mb": math.nan}, {"bucket_mb": math.inf}, {"in_flight": "2"}],
)
def test_sizes_of_an_overlap_are_positive_numbers(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="write bucket_mb > 0, chunk_mb > 0 and in_flight >= 1"):
        Overlap(**settings)


def test_feedback_that_grows_warns() -> None:
    """alpha = beta = 1 around L2 scaling with 4 levels diverges; ECQ-SGD's setting does not."""
    with pytest.warns(UserWarning, match=r"lets errors grow: .* write ErrorFeedback\(alpha=0.2, beta=0.9, res"):
        Channel(Qsgd(levels=4, norm="l2"), ErrorFeedback())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Channel(Qsgd(levels=4, norm="l2"), ErrorFeedback(alpha=0.2, beta=0.9))
        Channel(Qsgd(bits=4), ErrorFeedback())
        for biased in (OneBit(), ScaledSign(), Cast("bf16"), Natural()):
            Channel(biased, ErrorFeedback())


def test_a_difference_that_grows_warns() -> None:
    """alpha = 1 is for contractions. What one bit loses of x - h is eleven times its square, and h goes off."""
    with pytest.warns(
        UserWarning, match=r"Difference\(alpha=1.0\) around qsgd:bits=1 .* write Difference\(alpha=0.081\), Shrunk\("
    ):
        Channel(Qsgd(bits=1), Difference())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Channel(Qsgd(bits=1), Difference(alpha=0.081))
        Channel(Qsgd(bits=4), Difference())
        Channel(OneBit(), Difference())


@final
@dataclass(frozen=True)
class Raw(Codec):
    """One byte per symbol: a codec that a user might write."""

    name: ClassVar[str] = "raw"

    def bound(self, n: int, width: int) -> int:
        return n

    def pack(self, symbols: Tensor, width: int) -> Tensor:
        return symbols

    def unpack(self, data: Tensor, n: int, width: int) -> Tensor:
        return data


def test_any_codec_composes_with_a_symbol_compressor() -> None:
    x = torch.randn(700, generator=torch.Generator().manual_seed(0))
    for compressor in (Qsgd(levels=4, norm="l2"), Qsgd(bits=3, symmetric=False), ScaledSign()):
        results = []
        for codec in (BitPack(), Raw()):
            channel = Channel(compressor, codec=codec)

            async def program(comm: Comm, channel: Channel = channel) -> Tensor:
                ctx = Context(comm, Layout.flat(700), Key(seed=2, rank=comm.rank))
                exchange = AllGather(channel)
                return await exchange(x, exchange.init(ctx.layout, comm), ctx)

            results.append(run(program, 2).results[0])
        assert torch.equal(*results)


def test_a_codec_needs_symbols() -> None:
    with pytest.raises(TypeError, match=r"has no integer symbols for a codec; leave the codec out: Channel\(Natural"):
        Channel(Natural(), codec=Raw())


def test_symbols_of_small_magnitudes_are_small() -> None:
    x, c, layout = torch.tensor([0.0, -1.0, 1.0, -7.0, 7.0]), Qsgd(bits=4), Layout.flat(5)
    side = torch.empty(c.side_bytes(layout), dtype=torch.uint8)
    assert c.write_symbols(x, layout, Key(), side).tolist() == [0, 1, 2, 13, 14]


def test_a_codec_that_loses_symbols_is_caught() -> None:
    short = Coded(Qsgd(bits=4), Raw())
    payload = Payload.new(4 + 99)
    payload.seal(scheme(short, Layout.flat(100)), Key())
    with pytest.raises(PayloadError, match="raw gave 99 symbols for 100 elements"):
        short.decode(payload, Layout.flat(100))


def test_entry_points_are_looked_up_when_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("natural2", "thinwire.compressors.natural:Natural", "thinwire.compressors")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == point.group else [])
    fresh: registry.Registry[thinwire.Compressor] = registry.Registry("compressor", "thinwire.compressors")
    assert list(fresh) == ["natural2"]
    assert fresh.parse("natural2") == Natural()


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="'qsgd' is registered twice"):
        axis.COMPRESSORS.add("qsgd", Natural)
