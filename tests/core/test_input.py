"""Bad input at the boundary: one clear sentence, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from thinwire import Key, Layout, Overlap, Sync, methods
from thinwire.compressors import (
    Cast,
    IntBlock,
    KLevel,
    LaqGrid,
    LowPrecision,
    MiniFloat,
    NaturalDithering,
    Qsgd,
    ScaledSign,
    TernGrad,
)
from thinwire.compressors import get as compressor
from thinwire.core.compressor import encode_with_feedback
from thinwire.memory import ErrorFeedback
from thinwire.sync import Sgd


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.complex64, torch.bool])
def test_wrong_dtype(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"gradients are float32, bfloat16 or float16; got .*: write x.float\(\)"):
        Qsgd(bits=4).encode(torch.ones(8).to(dtype))


def test_what_is_no_tensor_and_no_payload() -> None:
    c = Qsgd(bits=4)
    with pytest.raises(TypeError, match=r"encode takes a tensor; got list: write torch.tensor\(x\)"):
        c.encode([1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"decode takes a Payload; got bytes: write Payload\(tensor\)"):
        c.decode(b"thin", Layout.flat(2))  # type: ignore[arg-type]


def test_non_contiguous() -> None:
    with pytest.raises(ValueError, match=r"contiguous tensors; got strides \(1, 4\): write x.contiguous\(\)"):
        Qsgd(bits=4).encode(torch.ones(8, 4).T)


def test_zero_elements_travel() -> None:
    c, layout = Qsgd(bits=4), Layout.flat(0)
    payload = c.encode(torch.empty(0))
    assert payload.nbytes == 32
    assert c.decode(payload, layout).numel() == 0


def test_layout_and_tensor_disagree() -> None:
    with pytest.raises(ValueError, match="the layout has 5 elements but the tensor has 4"):
        Qsgd(bits=4).encode(torch.ones(4), Layout.flat(5))
    with pytest.raises(ValueError, match="a shape for each name"):
        Layout(("a",), ())


def test_decode_add_into_the_wrong_tensor() -> None:
    c = Qsgd(bits=4)
    payload = c.encode(torch.ones(8))
    for out in (torch.zeros(8, dtype=torch.float16), torch.zeros(9), torch.zeros(16)[::2]):
        with pytest.raises(ValueError, match="decode_add adds into a contiguous float32 tensor of 8 elements"):
            c.decode_add(payload, Layout.flat(8), out)


def test_a_residual_that_does_not_fit() -> None:
    x = torch.ones(64)
    for e in (torch.zeros(63), torch.zeros(64, dtype=torch.float64), torch.zeros(128)[::2]):
        with pytest.raises(ValueError, match="the residual is a contiguous float32 tensor of 64 elements on cpu"):
            encode_with_feedback(Qsgd(bits=4), x, e)


def test_a_block_larger_than_any_tensor_is_one_block() -> None:
    x = torch.ones(1 << 18, dtype=torch.bfloat16)
    payload = Qsgd(bits=4, block=2**55 + 1).encode(x)
    assert payload.body.numel() == 4 + x.numel() // 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Qsgd(bits=0), "fields have 1 to 8 bits"),
        (lambda: Qsgd(bits=9), "fields have 1 to 8 bits"),
        (lambda: Qsgd(bits=2.5), "fields have 1 to 8 bits"),  # type: ignore[arg-type]
        (lambda: Qsgd(), r"write Qsgd\(bits=4\) or Qsgd\(levels=4\)"),
        (lambda: Qsgd(bits=4, levels=4), "one of bits and levels"),
        (lambda: Qsgd(levels=128), "1 to 127 levels"),
        (lambda: Qsgd(bits=4, norm="l3"), "write norm='max' or 'l2'"),  # type: ignore[arg-type]
        (lambda: Qsgd(levels=4, symmetric=False), r"write Qsgd\(bits=..., symmetric=False\)"),
        (lambda: Qsgd(bits=4, norm="l2", symmetric=False), "leave norm out"),
        (lambda: Qsgd(bits=4, block=0), "positive block size"),
        (lambda: IntBlock(bits=1), "fields have 2 to 8 bits"),
        (lambda: IntBlock(rounding="up"), "write rounding='nearest' or 'stochastic'"),  # type: ignore[arg-type]
        (lambda: KLevel(k=1), "write 2 to 256 levels"),
        (lambda: KLevel(k=2.5), "write 2 to 256 levels"),  # type: ignore[arg-type]
        (lambda: IntBlock(block=1.5), "positive block size"),  # type: ignore[arg-type]
        (lambda: LaqGrid(bits=9), "fields have 1 to 8 bits"),
        (lambda: LowPrecision(bits=1), "fields have 2 to 8 bits"),
        (lambda: LowPrecision(step=0.0), "positive step"),
        (lambda: NaturalDithering(levels=25), "write 1 to 24 levels"),
        (lambda: ScaledSign(block=-1), "positive block size"),
        (lambda: TernGrad(clip=0.0), "positive number of standard deviations"),
        (lambda: Cast("fp32"), "write format='fp16' or 'bf16'"),  # type: ignore[arg-type]
        (lambda: MiniFloat("e3m4"), "write format='e4m3' or 'e5m2' or 'e2m1' or 'e3m0'"),  # type: ignore[arg-type]
        (lambda: ErrorFeedback(alpha=0.0), r"write ErrorFeedback\(\) for the classical form"),
        (lambda: ErrorFeedback(beta=1.5), "0 <= beta <= 1"),
        (lambda: Sync(every=0), r"write Sync\(every=1\)"),
        (lambda: Sync(every=4), r"write Sync\(of=Param\(\), every=4\)"),
        (lambda: Sync(staleness=-1), "None for asynchronous"),
        (lambda: Sync(warmup=-1), "0 or more"),
        (lambda: Sgd(lr=-0.1), "write lr >= 0"),
        (lambda: Overlap(in_flight=0), "in_flight >= 1"),
        (lambda: Overlap(in_flight=0.5), "in_flight >= 1"),  # type: ignore[arg-type]
        (lambda: Key(rank=1 << 24), r"write 0 <= rank < 2\^24"),
        (lambda: Key(seed=-1), r"write 0 <= seed < 2\^64"),
        (lambda: Key(offset=100), "multiple of 512"),
    ],
)
def test_settings_out_of_range(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_factory_names_the_setting_that_was_meant() -> None:
    with pytest.raises(TypeError, match="method 'qsgd' has no setting 'bit'; did you mean 'bits'"):
        methods.qsgd(bit=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qsdg:bits=4", "unknown compressor 'qsdg'; did you mean 'qsgd'"),
        ("zzz", "unknown compressor 'zzz'; there are atomo-entries, "),
        ("qsgd:bit=4", "compressor 'qsgd' has no setting 'bit'; did you mean 'bits'"),
        ("qsgd:4", r"'4' in 'qsgd:4' is not key=value; write qsgd:bits=\.\.\."),
        ("qsgd:bits=99", "fields have 1 to 8 bits"),
        ("qsgd:bits=4,bits=2", "sets bits twice"),
        ("qsgd:bits=4,block=abc", "block is a whole number or none"),
        ("int:block=1.5", "block is a whole number or none"),
        ("terngrad:clip=abc", "clip is a number or none"),
        ("terngrad:clip=inf", "clip is a number or none"),
        ("qsgd:bits=4,symmetric=maybe", "symmetric is true or false"),
        ("qsgd:bits=4,norm=l3", "norm is max or l2"),
    ],
)
def test_unknown_ids(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compressor(text)
