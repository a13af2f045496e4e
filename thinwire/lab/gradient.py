"""A recorded gradient: one batch of a small convolutional net on scikit-learn's digits, after 40 steps of SGD.

`load()` reads the file in the package; `python -m thinwire.lab.gradient` records it again (this needs the `lab`
extra).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from thinwire.core.types import Layout
from thinwire.lab.tasks import digits

FILE = Path(__file__).parent / "data" / "gradient.npz"
STEPS = 40


def load() -> tuple[Tensor, Layout]:
    """The flat gradient and the layout of its tensors."""
    with np.load(FILE) as file:
        tensors = {name: torch.from_numpy(file[name]) for name in file.files}
    return torch.cat([t.view(-1) for t in tensors.values()]), Layout.of(tensors.items())


def _net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.GELU(),
        nn.Linear(64, 10),
    )


def record() -> None:
    """Train for a moment and keep the gradient of the next batch."""
    torch.manual_seed(0)
    x, y = digits()
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS + 1):
        batch = torch.arange(step * 64, step * 64 + 64) % len(x)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        torch.autograd.backward(loss)
        if step < STEPS:
            optimizer.step()
    FILE.parent.mkdir(exist_ok=True)
    gradients = {n: p.grad.numpy() for n, p in net.named_parameters() if p.grad is not None}
    np.savez_compressed(FILE, **gradients)  # type: ignore[arg-type]


if __name__ == "__main__":
    record()
