"""Checkpoints read by one rank alone: with the function of today's torch, and with that of torch 2.6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from thinwire.engine.checkpoint import read


def load_as_torch_2_6_has_it(state_dict: dict[str, Any], *, checkpoint_id: str) -> None:
    pytest.fail("it would call upon all ranks")


@pytest.mark.parametrize("old", [False, True], ids=["now", "2.6"])
@pytest.mark.filterwarnings("ignore")  # of torch: that one process saves, and how it does
def test_everything_comes_back(old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"rank0": {"round": 5, "tensors": {"a.b": torch.arange(3.0)}}, "rank1": {"round": 5, "tensors": {}}}
    dcp.save({"wire": state, "model": torch.ones(2)}, checkpoint_id=tmp_path)
    if old:
        monkeypatch.setattr(dcp, "load", load_as_torch_2_6_has_it)
    first, second = read(str(tmp_path))
    assert torch.equal(first["rank0"]["tensors"].pop("a.b"), torch.arange(3.0))
    assert (first, second["rank1"]["round"]) == ({"rank0": {"round": 5, "tensors": {}}}, 5)
