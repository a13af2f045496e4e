"""The text task: windows of the standard library, and a transformer that does not look ahead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from thinwire.cli.app import main
from thinwire.lab import tasks, text
from thinwire.lab.launch import Say, launch
from thinwire.lab.records import Row
from thinwire.lab.tasks import Data
from thinwire.lab.train import Job, train


def test_windows() -> None:
    task = tasks.get("text")
    data = task.load(task.locate(None))
    assert data.train_x.shape == data.train_y.shape == (task.images, text.WINDOW)
    assert data.test_x.shape == (text.WINDOWS // 10, text.WINDOW)
    assert torch.equal(data.train_x[:, 1:], data.train_y[:, :-1])  # what follows each character
    start = bytes([*data.train_x[0].tolist(), int(data.train_y[0, -1])])
    where = text.find(None) / f"{text.MODULES[0]}.py"
    assert where.read_bytes().startswith(start)
    tenth = bytes(data.test_x[0].tolist())
    assert where.read_bytes()[9 * (text.WINDOW + 1) :].startswith(tenth)
    assert 0 <= int(data.train_x.min()) < int(data.train_x.max()) < text.SYMBOLS


def test_reader_sees_nothing_later() -> None:
    torch.manual_seed(0)
    net = text.Reader(width=32, layers=2, heads=2)
    x = torch.randint(text.SYMBOLS, (2, text.WINDOW))
    other = x.clone()
    other[:, 20:] = torch.randint(text.SYMBOLS, (2, text.WINDOW - 20))
    scores, changed = net(x), net(other)
    assert scores.shape == (2, text.SYMBOLS, text.WINDOW)
    assert torch.allclose(scores[:, :, :20], changed[:, :, :20], atol=1e-5)
    assert not torch.allclose(scores[:, :, 20:], changed[:, :, 20:], atol=1e-2)


def test_reader_learns_a_rule() -> None:
    torch.manual_seed(0)
    net = text.Reader(width=32, layers=1, heads=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        starts = torch.randint(text.SYMBOLS, (16, 1), generator=generator)
        window = (starts + 3 * torch.arange(text.WINDOW + 1)) % text.SYMBOLS
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(window[:, :-1]), window[:, 1:])
        torch.autograd.backward(loss)
        optimizer.step()
    assert loss.item() < 2.0  # from log 128 = 4.9


def test_sources_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"not in .* \(argparse.py, .*write --data"):
        tasks.get("text").locate(tmp_path)
    for name in text.MODULES:
        (tmp_path / f"{name}.py").write_text("pass\n")
    with pytest.raises(ValueError, match="holds 210 of the 1,320,000 characters"):
        tasks.get("text").load(tmp_path)


def short(say: Say) -> Row:
    """A program: 16 steps on two ranks."""
    data = tasks.get("text").load(None)
    some = Data(data.train_x[:512], data.train_y[:512], data.test_x[:64], data.test_y[:64])
    return train(say, Job("text", "qsgd:bits=4"), some)


def test_training() -> None:
    row, other = launch(short, 2, timeout=100, hear=lambda _: None)
    assert row["steps"] == 16
    assert row["replicas_equal"]
    assert 0.1 < row["accuracy"] == other["accuracy"] <= 1  # of 64 x 32 characters; most are spaces
    assert row["loss"] < 4.5  # from log 128 = 4.9


def test_too_many_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--task", "text", "--workers", "2251"]) == 2
    assert "text has 36000 windows for steps of 16 per worker, so 1 to 2250 workers" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["deepsqueeze", "qsgd"])
def test_reproductions_are_of_images(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", name, "--task", "text"]) == 2
    assert f"{name} trains on images, not on text; write --task digits or fashion" in capsys.readouterr().err
