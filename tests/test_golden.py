"""Golden bytes: what every instance puts on the wire, committed. A change of format is a change of version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from battery import INSTANCES, LAYOUT, fixed_vector

from thinwire import Key, Payload
from thinwire.compressors import AtomoSpectral
from thinwire.core.compressor import Compressor

FOLDER = Path(__file__).parent / "golden"


def path_of(c: Compressor) -> Path:
    return FOLDER / (re.sub("[:;,()]+", "-", c.id).strip("-") + ".bin")


@pytest.mark.parametrize("c", INSTANCES, ids=lambda c: c.id)
def test_wire_bytes_are_the_committed_ones(c: Compressor, write_golden: bool) -> None:
    wire = c.encode(fixed_vector(LAYOUT.numel), LAYOUT, Key(seed=1, step=2, rank=3, bucket=4)).data
    if write_golden:
        FOLDER.mkdir(exist_ok=True)
        path_of(c).write_bytes(wire.numpy().tobytes())
    golden = path_of(c).read_bytes()
    if not isinstance(c, AtomoSpectral):  # singular vectors are LAPACK's, and so are their bits
        assert wire.numpy().tobytes() == golden
    again = Payload(torch.frombuffer(bytearray(golden), dtype=torch.uint8))
    assert c.decode(again, LAYOUT).isfinite().all()


def test_no_golden_file_without_an_instance() -> None:
    assert {p.name for p in FOLDER.iterdir()} == {path_of(c).name for c in INSTANCES}
