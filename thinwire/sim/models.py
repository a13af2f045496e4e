"""Named models: the shapes of their parameters in forward order, and what computing each of them costs.

    resnet50, resnet152             convolutions of 224 x 224 pictures, 1000 classes
    gpt2, gpt2-medium, -large, -xl  transformers of 12 to 48 layers, 1024 places, 50257 words

`flops` counts multiplications and additions of the forward pass, per picture or per word, that end when the gradient
of this tensor is complete: backward takes twice as many in the opposite order. The head of a GPT-2 is its embedding,
whose gradient is complete at the very end, so that the norm before the head carries the head's.

Reference: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, table 1, with the stride of
a block in its 3 x 3 convolution, as torchvision has it; Radford et al., "Language models are unsupervised multitask
learners", 2019, table 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from thinwire.core.registry import Registry

CLASSES, PIXELS = 1000, 224
WORDS, PLACES = 50257, 1024
EXPANSION = 4  # a block's output has four times as many channels as its middle


class Weight(NamedTuple):
    """One parameter."""

    name: str
    shape: tuple[int, ...]
    flops: float = 0.0

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


MODELS: Registry[tuple[Weight, ...]] = Registry("model", "thinwire.models")
"""Named models, as functions without arguments."""


def _resnet(blocks: tuple[int, int, int, int]) -> tuple[Weight, ...]:
    weights = [*_conv("conv1", "bn1", 3, 64, 7, PIXELS // 2)]
    channels, side = 64, PIXELS // 4
    for number, count in enumerate(blocks):
        width = 64 << number
        for block in range(count):
            shrinks = number > 0 and block == 0
            inside, side = side, side // 2 if shrinks else side
            at, out = f"layer{number + 1}.{block}.", EXPANSION * width
            weights += _conv(at + "conv1", at + "bn1", channels, width, 1, inside)
            weights += _conv(at + "conv2", at + "bn2", width, width, 3, side)
            weights += _conv(at + "conv3", at + "bn3", width, out, 1, side)
            if block == 0:
                weights += _conv(at + "downsample.0", at + "downsample.1", channels, out, 1, side)
            channels = out
    weights += [Weight("fc.weight", (CLASSES, channels), 2.0 * CLASSES * channels), Weight("fc.bias", (CLASSES,))]
    return tuple(weights)


def _conv(name: str, norm: str, inputs: int, outputs: int, kernel: int, side: int) -> Iterator[Weight]:
    """A convolution without a bias whose output has `side` x `side` places, and the norm after it."""
    shape = (outputs, inputs, kernel, kernel)
    yield Weight(f"{name}.weight", shape, 2.0 * math.prod(shape) * side * side)
    yield Weight(f"{norm}.weight", (outputs,))
    yield Weight(f"{norm}.bias", (outputs,))


def _gpt2(layers: int, width: int) -> tuple[Weight, ...]:
    weights = [Weight("wte.weight", (WORDS, width)), Weight("wpe.weight", (PLACES, width))]
    for layer in range(layers):
        at = f"h.{layer}."
        weights += _norm(at + "ln_1", width)
        weights += _linear(at + "attn.c_attn", width, 3 * width)
        weights += _linear(at + "attn.c_proj", width, width, 2.0 * 2 * PLACES * width)  # scores, and their values
        weights += _norm(at + "ln_2", width)
        weights += _linear(at + "mlp.c_fc", width, 4 * width)
        weights += _linear(at + "mlp.c_proj", 4 * width, width)
    weights += _norm("ln_f", width, 2.0 * WORDS * width)
    return tuple(weights)


def _linear(name: str, inputs: int, outputs: int, more: float = 0.0) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (inputs, outputs), 2.0 * inputs * outputs + more)
    yield Weight(f"{name}.bias", (outputs,))


def _norm(name: str, width: int, flops: float = 0.0) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (width,), flops)
    yield Weight(f"{name}.bias", (width,))


MODELS.add("resnet50", partial(_resnet, (3, 4, 6, 3)))
MODELS.add("resnet152", partial(_resnet, (3, 8, 36, 3)))
MODELS.add("gpt2", partial(_gpt2, 12, 768))
MODELS.add("gpt2-medium", partial(_gpt2, 24, 1024))
MODELS.add("gpt2-large", partial(_gpt2, 36, 1280))
MODELS.add("gpt2-xl", partial(_gpt2, 48, 1600))
