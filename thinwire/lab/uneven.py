"""Nets whose tensors differ, small enough for two cores, as problems for `tw.simulate`.

`resnet` has ResNet-50's tensors by name, a quarter as wide or narrower, and learns Fashion-MNIST. `words` is GPT-2's
architecture, whose embedding has 31% of all elements as in GPT-2 small, and learns the words of Python's standard
library. Both are tested by their loss on data that is not trained on.

Reference: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016; for GPT-2 see gpt2.py.

Departs from the papers: the first convolution is 3 x 3 without a stride, as images are small.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from functools import cache, partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.optim import Optimizer

from thinwire.lab import corpus, tasks
from thinwire.lab.gpt2 import Gpt2, Shape
from thinwire.sim.problem import Problem

DEPTHS = (3, 4, 6, 3)
WIDTH, IMAGES = 16, 16
GPT = Shape(words=2048, layers=4, width=96, heads=4, context=32)
WINDOWS = 8
CHARACTERS = 4_000_000  # of the corpus that are cut into words
HELD_OUT = 256  # images or windows that are tested


@final
class Bottleneck(nn.Module):
    """Three convolutions around a residual; the middle one has `width` channels, the last four times as many."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)
        self.downsample = nn.Sequential()
        if stride > 1 or before != after:
            self.downsample.append(nn.Conv2d(before, after, 1, stride, bias=False)).append(nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = f.relu(self.bn1(self.conv1(x)))
        y = f.relu(self.bn2(self.conv2(y)))
        return f.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def resnet50(width: int) -> nn.Module:
    """ResNet-50 with `width` channels at first, where the paper has 64, for images of one channel and 10 classes."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["conv1"], parts["bn1"], parts["relu"] = (
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )
    before = width
    for stage, depth in enumerate(DEPTHS):
        blocks = []
        for number in range(depth):
            blocks.append(Bottleneck(before, width << stage, 2 if stage and not number else 1))
            before = 4 * (width << stage)
        parts[f"layer{stage + 1}"] = nn.Sequential(*blocks)
    parts["pool"], parts["flat"], parts["fc"] = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)
    return nn.Sequential(parts)


def resnet(workers: int, seed: int, width: int = WIDTH, images: int = IMAGES) -> Problem:
    """A narrow ResNet-50 on Fashion-MNIST, with so many images per step and worker."""
    task = tasks.get("fashion")
    data = task.load(task.locate(None))

    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return resnet50(width)

    def loss(net: nn.Module, rank: int, step: int) -> Tensor:
        some = torch.randint(len(data.train_x), (images,), generator=_noise(seed, step * workers + rank))
        return task.loss(net(data.train_x[some]), data.train_y[some])

    def test(net: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"loss": float(task.loss(net(data.test_x[:HELD_OUT]), data.test_y[:HELD_OUT]))}

    return Problem(model, loss, partial(torch.optim.SGD, lr=0.05, momentum=0.9), test=test)


def words(workers: int, seed: int, shape: Shape = GPT, windows: int = WINDOWS) -> Problem:
    """A transformer on words, with so many windows of text per step and worker."""
    train, held_out = _words(shape.words)

    def loss(net: nn.Module, rank: int, step: int) -> Tensor:
        text = corpus.windows(train, windows, shape.context, seed=(seed << 24) + step * workers + rank)
        found: Tensor = net(text)
        return found

    def test(net: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"loss": float(net(corpus.windows(held_out, HELD_OUT, shape.context, seed=0)))}

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3)

    return Problem(partial(Gpt2, shape, seed), loss, optimizer, test=test)


@cache
def _words(count: int) -> tuple[Tensor, Tensor]:
    """Numbers of words to train on and to test with; all but the most frequent are 0."""
    text = bytes(corpus.load().train[:CHARACTERS].to(torch.uint8).tolist()).decode("ascii", "replace")
    found = re.findall(r"\w+|\s+|[^\w\s]", text)
    number = {word: place + 1 for place, (word, _) in enumerate(Counter(found).most_common(count - 1))}
    numbers = torch.tensor([number.get(word, 0) for word in found])
    return numbers[: -len(numbers) // 20], numbers[-len(numbers) // 20 :]


def _noise(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed << 24) + number)
