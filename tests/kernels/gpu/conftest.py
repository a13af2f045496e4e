"""Kernels run on a GPU where there is one, and otherwise in Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    pytest.importorskip("triton", reason="the GPU's kernels need Triton")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def overflow() -> Iterator[None]:
    """NumPy, which interprets, does not warn of infinities and NaN."""
    with np.errstate(all="ignore"):
        yield
