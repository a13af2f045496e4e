"""Tasks that train in a minute on two cores: images in ten classes, and text.

`digits` is scikit-learn's 8x8 digits, 1,437 to train on and 360 to test on. `fashion` is Fashion-MNIST, 60,000 and
10,000 images of 28x28 (Xiao, Rasul, Vollgraf, 2017, arXiv 1708.07747), from its four files. `text` is the source of
Python's standard library, 36,000 and 4,000 windows of 32 characters (thinwire/lab/text.py).
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from thinwire.core.registry import suggest
from thinwire.lab import idx, text

FASHION = Path("/usr/share/datasets/fashion-mnist")
FILES = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


@dataclass(frozen=True)
class Data:
    """Images (count, 1, height, width), float32, and labels (count,), int64; for text, two of (count, 32)."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Task:
    """What is trained, and how: `batch` images or windows per worker and step, SGD with `lr` and momentum 0.9."""

    name: str
    images: int  # to train on; windows for text
    locate: Callable[[Path | None], Path | None]
    load: Callable[[Path | None], Data]
    model: Callable[[], nn.Module]
    epochs: int
    batch: int
    lr: float
    tested: int  # images that are classified in the test; characters that are guessed for text
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    what: str = "images"

    def check_workers(self, workers: int) -> None:
        """Refuse a number of workers that leaves no step to take."""
        if not 1 <= workers <= self.images // self.batch:
            raise ValueError(
                f"{self.name} has {self.images} {self.what} for steps of {self.batch} per worker, so 1 to "
                f"{self.images // self.batch} workers can share it; write --workers 4"
            )


def get(name: str) -> Task:
    """The task of that name."""
    if name not in TASKS:
        raise ValueError(f"unknown task '{name}'{suggest(name, TASKS)}")
    return TASKS[name]


def batches(count: int, batch: int, rank: int, world: int, seed: int, epoch: int) -> Iterator[Tensor]:
    """The indices of each step of an epoch on this rank; ranks take turns in one permutation, equally often."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
    for step in range(count // (batch * world)):
        start = (step * world + rank) * batch
        yield order[start : start + batch]


def _find_digits(folder: Path | None) -> Path | None:
    if folder is not None:
        raise ValueError("the digits come with scikit-learn; leave --data out, or write --task fashion")
    if find_spec("sklearn") is None:
        raise ValueError("the digits come with scikit-learn, which is missing; write pip install 'thinwire[lab]'")
    return None


def digits() -> tuple[Tensor, Tensor]:
    """All 1,797 images (1797, 1, 8, 8), float32 from 0 to 1, and labels, in scikit-learn's order.

    They are read from its file: importing scikit-learn takes a hundred times as long, in every process.
    """
    spec = find_spec("sklearn")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    file = folder / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        with gzip.open(file) as lines:
            table = np.loadtxt(lines, delimiter=",")
        images, labels = table[:, :-1], table[:, -1]
    else:
        from sklearn.datasets import load_digits  # noqa: PLC0415  (an extra)

        images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels, dtype=torch.int64)


def _load_digits(_: Path | None) -> Data:
    x, y = digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return Data(x[train], y[train], x[test], y[test])


def _digits_net() -> nn.Module:
    """151,306 parameters, 149,504 of them in two tensors."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def _find_fashion(folder: Path | None) -> Path | None:
    where = FASHION if folder is None else folder
    missing = [name for name in FILES if not (where / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"Fashion-MNIST is not in {where} ({', '.join(missing)}): write apt-get install dataset-fashion-mnist, "
            "or --data with the folder of its four .gz files"
        )
    return where


def _load_fashion(folder: Path | None) -> Data:
    where = FASHION if folder is None else folder
    train_x, train_y, test_x, test_y = (idx.read(where / name) for name in FILES)
    for x, y in ((train_x, train_y), (test_x, test_y)):
        if x.shape != (len(y), 28, 28):
            raise ValueError(f"{where} holds images {tuple(x.shape)} for {len(y)} labels, not ({len(y)}, 28, 28)")
    return Data(_normal(train_x), train_y.long(), _normal(test_x), test_y.long())


def _normal(x: Tensor) -> Tensor:
    """Bytes (count, 28, 28) as floats of mean 0 and deviation 1 (over the training images)."""
    return x.unsqueeze(1).float().div_(255).sub_(0.286).div_(0.353)


def _fashion_net() -> nn.Module:
    """207,178 parameters, 200,704 of them in one tensor."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1568, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def _load_text(folder: Path | None) -> Data:
    train, test = text.load(folder)
    return Data(train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:])


TASKS = {
    "digits": Task("digits", 1437, _find_digits, _load_digits, _digits_net, epochs=12, batch=16, lr=0.05, tested=360),
    "fashion": Task(
        "fashion", 60_000, _find_fashion, _load_fashion, _fashion_net, epochs=4, batch=64, lr=0.1, tested=10_000
    ),
    "text": Task(
        "text",
        text.TRAINED,
        text.find,
        _load_text,
        text.Reader,
        epochs=1,
        batch=16,
        lr=0.1,
        tested=(text.WINDOWS - text.TRAINED) * text.WINDOW,
        what="windows",
    ),
}
