"""Courses: what is raced on. Nets whose gradient is large for the time they compute, and accuracies to reach.

At 100 Mbit/s on 4 hosts a float32 step takes 0.5 s for a million parameters, and a target is what float32 SGD reaches
in 40 to 100 of them. Hosts of a lab share the cores of one machine, so batches are small: when a host reads 128
characters per step, all four compute for 60 ms on two cores and send for 0.95 s. Weights are in several matrices, as
in most nets, so that one can travel while another is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import nn

from thinwire.core.registry import suggest
from thinwire.lab.text import Reader

WIDTH = 1024


@final
@dataclass(frozen=True)
class Course:
    """`batch` images or windows per rank and step; every `every` steps, a test on `tested` of the test set."""

    model: Callable[[], nn.Module]
    batch: int
    target: float  # accuracy, smoothed over tests
    most: int  # steps before a run is given up
    tested: int
    every: int = 5

    @property
    def params(self) -> int:
        """Elements of the gradient."""
        return sum(p.numel() for p in self.model().parameters())


def get(task: str) -> Course:
    """The course of a task."""
    if task not in COURSES:
        raise ValueError(f"unknown task '{task}'{suggest(task, COURSES)}")
    return COURSES[task]


def _digits() -> nn.Module:
    """3,225,610 parameters, 3,145,728 of them in three matrices."""
    return _wide(64, 3)


def _fashion() -> nn.Module:
    """2,913,290 parameters, 2,899,968 of them in three matrices."""
    return _wide(784, 2)


def _text() -> nn.Module:
    """1,885,952 parameters, 1,769,472 of them in four matrices."""
    return Reader(width=384, layers=1, heads=8)


def _wide(pixels: int, layers: int) -> nn.Module:
    """Square layers between the pixels and the classes, whose initial weights keep the scale of their input."""
    parts: list[nn.Module] = [nn.Flatten()]
    for inputs in (pixels, *[WIDTH] * layers):
        layer = nn.Linear(inputs, WIDTH)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
        parts += [layer, nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 10))


COURSES = {
    "digits": Course(_digits, batch=32, target=0.95, most=200, tested=360),
    "fashion": Course(_fashion, batch=32, target=0.80, most=200, tested=2000),
    "text": Course(_text, batch=16, target=0.41, most=160, tested=512),
}
