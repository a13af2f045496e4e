"""Tensors on a GPU: the reference tier runs where the tensor is and gives the bits that the CPU gives."""

from __future__ import annotations

import pytest
import torch
from battery import INSTANCES, LAYOUT, vector

from thinwire import Key
from thinwire.compressors import AtomoSpectral
from thinwire.core.compressor import Compressor, encode_with_feedback

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


BY_US = [c for c in INSTANCES if not isinstance(c, AtomoSpectral)]  # whose bits do not depend on a library's SVD


@pytest.mark.parametrize("c", BY_US, ids=lambda c: c.id)
def test_gpu_and_cpu_agree_bit_for_bit(c: Compressor) -> None:
    for kind in ("gauss", "heavy", "denormal"):
        x, e = vector(LAYOUT.numel, kind), vector(LAYOUT.numel, seed=3) * 0.1
        key = Key(seed=5, step=2)
        here = c.encode(x, LAYOUT, key)
        there = c.encode(x.cuda(), LAYOUT, key)
        assert there.data.is_cuda
        assert torch.equal(there.data.cpu(), here.data), kind
        assert torch.equal(c.decode(there, LAYOUT).cpu(), c.decode(here, LAYOUT)), kind
        residual = e.cuda()
        encode_with_feedback(c, x.cuda(), residual, LAYOUT, key, alpha=0.5, beta=0.75)
        encode_with_feedback(c, x, e, LAYOUT, key, alpha=0.5, beta=0.75)
        assert torch.equal(residual.cpu(), e), kind


def test_tensors_on_two_devices_are_refused() -> None:
    c = INSTANCES[1]
    payload = c.encode(vector(LAYOUT.numel).cuda(), LAYOUT)
    with pytest.raises(ValueError, match="the payload is on cuda:0 but the tensor to add into is on cpu"):
        c.decode_add(payload, LAYOUT, torch.zeros(LAYOUT.numel))
