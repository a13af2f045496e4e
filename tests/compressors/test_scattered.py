"""Error feedback of single elements: the residual is, to the bit, what the dense way gives."""

from __future__ import annotations

import pytest
import torch

from thinwire.compressors import BlockTopK, QuantisedTopK, RandomK, SparseLoco, TopK
from thinwire.core.compressor import Compressor
from thinwire.core.payload import Payload
from thinwire.core.types import Key, Layout

N = 5000
SOME = [
    TopK(0.02),
    TopK(0.02, values="bf16", indices="packed"),
    RandomK(0.02),
    QuantisedTopK(0.02),
    BlockTopK(block=64, k=3),
    SparseLoco(block=256, k=8),
]


@pytest.mark.parametrize("compressor", SOME, ids=lambda c: c.id)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.95, 0.95), (0.5, 0.9)])
def test_the_residual_is_that_of_the_dense_way(compressor: Compressor, alpha: float, beta: float) -> None:
    made = torch.Generator().manual_seed(3)
    x, e = torch.randn(N, generator=made), torch.randn(N, generator=made)
    layout, key = Layout.flat(N), Key(seed=5, step=2)
    for sent in (x, x.bfloat16(), torch.where(x > 3, torch.nan, x), torch.where(x > 3, torch.inf, x)):
        new, old = e.clone(), e.clone()
        bodies = [Payload.new(compressor.nbytes(layout), sent.device).body.zero_() for _ in range(2)]
        used = compressor.write_with_feedback(sent, layout, key, bodies[0], new, alpha, beta)
        again = Compressor.write_with_feedback(compressor, sent, layout, key, bodies[1], old, alpha, beta)
        assert used == again
        assert torch.equal(*bodies)
        assert torch.equal(new.view(torch.int32), old.view(torch.int32))
        assert torch.equal(new, e) == (not sent.isfinite().all())
