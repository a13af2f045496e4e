"""Figures in the real TensorBoard and W&B, read back from what they wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire.integrations import loggers


class Wire:
    """Figures that grow."""

    def __init__(self) -> None:
        self.rounds = 0

    def stats(self) -> dict[str, float]:
        self.rounds += 1
        return {"rounds": self.rounds, "bytes_sent": 1000 * self.rounds, "ratio": 7.25}


def test_tensorboard_reads_back_what_was_written(tmp_path: Path, needs: Callable[[str], None]) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

    wire, writer = Wire(), SummaryWriter(str(tmp_path))
    for step in (10, 20):
        loggers.tensorboard(wire, writer, step)
    loggers.tensorboard(None, writer, 30)  # one process has no wire
    writer.close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert {*read.Tags()["scalars"]} == {"thinwire/bytes_sent", "thinwire/ratio"}
    assert [(row.step, row.value) for row in read.Scalars("thinwire/bytes_sent")] == [(10, 1000), (20, 2000)]


def test_wandb_reads_back_what_was_logged(
    tmp_path: Path, needs: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("wandb")
    import wandb  # noqa: PLC0415

    monkeypatch.setenv("WANDB_MODE", "offline")
    wire = Wire()
    with wandb.init(project="thin", dir=str(tmp_path), mode="offline") as run:
        for step in (10, 20):
            loggers.wandb(wire, run, step)
        loggers.wandb(None, run, 30)  # one process has no wire
    wandb.teardown()  # its service writes the last rows when it ends
    written = next((tmp_path / "wandb").glob("offline-run-*/*.wandb")).read_bytes()
    # Rows are protocol buffers: a name, the mark of the field that follows, its length, and a number as text.
    marks = re.finditer(rb"(_step|thinwire/\w+)\x82\x01(.)", written, re.DOTALL)
    found = {(mark[1], float(written[mark.end() : mark.end() + mark[2][0]])) for mark in marks}
    assert {value for name, value in found if name == b"_step"} == {10, 20}
    assert {value for name, value in found if name == b"thinwire/bytes_sent"} == {1000, 2000}
    assert {value for name, value in found if name == b"thinwire/ratio"} == {7.25}


def test_what_is_not_a_writer() -> None:
    with pytest.raises(TypeError, match="tensorboard takes a SummaryWriter; got str: write tensorboard"):
        loggers.tensorboard(Wire(), "runs", 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"wandb takes a run; got NoneType: write .* run = wandb.init"):
        loggers.wandb(Wire(), None, 1)  # type: ignore[arg-type]
