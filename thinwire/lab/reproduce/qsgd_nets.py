"""The nets of QSGD's table 1 that `thinwire.sim.models` does not have: shapes in forward order, operations per image.

    alexnet       in one tower, without groups: 62 million parameters, as the table says
    vgg19         144 million
    bn-inception  11 million: the inception of 2015 with norms, without its side heads
    resnet110     1.7 million, for 32 x 32 pictures; the table says 1 million

Its LSTM (13 million, AN4) is left out: no account gives its shapes.

References: Krizhevsky, Sutskever, Hinton, NeurIPS 2012; Simonyan, Zisserman, ICLR 2015, table 1, column E; Ioffe,
Szegedy, ICML 2015, figure 5; He, Zhang, Ren, Sun, CVPR 2016, section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from thinwire.sim import MODELS, Weight

CLASSES = 1000
VGG19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels and convolutions of each stage
# Inception blocks: 1x1; 3x3 and what reduces it; the two 3x3 and what reduces them; behind the pooling; side.
# Where the first is 0 the block halves the side, and the pooling passes its input on.
BLOCKS = (
    (64, 64, 64, 64, 96, 32, 28),
    (64, 64, 96, 64, 96, 64, 28),
    (0, 128, 160, 64, 96, 0, 14),
    (224, 64, 96, 96, 128, 128, 14),
    (192, 96, 128, 96, 128, 128, 14),
    (160, 128, 160, 128, 160, 128, 14),
    (96, 128, 192, 160, 192, 128, 14),
    (0, 128, 192, 192, 256, 0, 7),
    (352, 192, 320, 160, 224, 128, 7),
    (352, 192, 320, 192, 224, 128, 7),
)


def conv(name: str, inputs: int, outputs: int, kernel: int, side: int, *, norm: bool = False) -> Iterator[Weight]:
    """A convolution with an output of `side` x `side` places, and its bias or its norm."""
    shape = (outputs, inputs, kernel, kernel)
    yield Weight(f"{name}.weight", shape, 2.0 * math.prod(shape) * side * side)
    for one in ("norm.weight", "norm.bias") if norm else ("bias",):
        yield Weight(f"{name}.{one}", (outputs,))


def dense(sizes: Sequence[int]) -> Iterator[Weight]:
    """Layers one after the other."""
    for at, (inputs, outputs) in enumerate(pairwise(sizes)):
        yield Weight(f"fc{at}.weight", (outputs, inputs), 2.0 * inputs * outputs)
        yield Weight(f"fc{at}.bias", (outputs,))


def alexnet() -> tuple[Weight, ...]:
    """Five convolutions and three dense layers, which have most of the parameters."""
    layers = ((3, 96, 11, 55), (96, 256, 5, 27), (256, 384, 3, 13), (384, 384, 3, 13), (384, 256, 3, 13))
    convs = [w for at, layer in enumerate(layers) for w in conv(f"conv{at}", *layer)]
    return (*convs, *dense((256 * 6 * 6, 4096, 4096, CLASSES)))


def vgg19() -> tuple[Weight, ...]:
    """Sixteen convolutions and three dense layers."""
    weights: list[Weight] = []
    inputs, side = 3, 224
    for stage, (outputs, count) in enumerate(VGG19):
        for at in range(count):
            weights += conv(f"conv{stage}.{at}", inputs, outputs, 3, side)
            inputs = outputs
        side //= 2
    return (*weights, *dense((512 * 7 * 7, 4096, 4096, CLASSES)))


def bn_inception() -> tuple[Weight, ...]:
    """Three convolutions, ten blocks, a dense layer."""
    weights = [*conv("conv0", 3, 64, 7, 112, norm=True), *conv("conv1", 64, 64, 1, 56, norm=True)]
    weights += conv("conv2", 64, 192, 3, 56, norm=True)
    inputs = 192
    for number, (one, to_three, three, to_two, two, pooled, side) in enumerate(BLOCKS):
        before, at = side if one else 2 * side, f"block{number}."
        weights += conv(at + "reduce3", inputs, to_three, 1, before, norm=True)
        weights += conv(at + "three", to_three, three, 3, side, norm=True)
        weights += conv(at + "reduce33", inputs, to_two, 1, before, norm=True)
        weights += conv(at + "first", to_two, two, 3, before, norm=True)
        weights += conv(at + "second", two, two, 3, side, norm=True)
        if one:
            weights += conv(at + "one", inputs, one, 1, side, norm=True)
            weights += conv(at + "pooled", inputs, pooled, 1, side, norm=True)
        inputs = three + two + (one + pooled if one else inputs)
    return (*weights, *dense((inputs, CLASSES)))


def resnet_small(depth: int) -> tuple[Weight, ...]:
    """A residual net of 6 n + 2 layers for 32 x 32 pictures; shortcuts have no parameters."""
    weights, inputs = [*conv("conv0", 3, 16, 3, 32, norm=True)], 16
    for stage, (width, side) in enumerate(((16, 32), (32, 16), (64, 8))):
        for block in range((depth - 2) // 6):
            for half in range(2):
                weights += conv(f"layer{stage}.{block}.{half}", inputs, width, 3, side, norm=True)
                inputs = width
    return (*weights, *dense((64, 10)))


NETS: dict[str, Callable[[], tuple[Weight, ...]]] = {
    "alexnet": alexnet,
    "vgg19": vgg19,
    "resnet152": MODELS["resnet152"],
    "resnet50": MODELS["resnet50"],
    "bn-inception": bn_inception,
    "resnet110": lambda: resnet_small(110),
}
"""The nets of the table, by name."""
