"""rANS on a GPU: speed of encode and decode, and the bytes of C++.

    python benchmarks/gpu_rans.py [--log 26] [--sweep]

`--log` is log2 of the symbols; `--sweep` adds other sizes of chunks and variants, and takes minutes. GB/s count one
byte per symbol. Each time is the median of 10 graph replays, with the microseconds of each kernel alone below.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass

import torch
from gpu_clock import kernels, milliseconds
from torch import Tensor

from thinwire.codecs import native
from thinwire.codecs import rans as cpp
from thinwire.kernels.gpu import rans
from thinwire.kernels.spec import packed_bytes

SCALES = {"1 bit": (0.41, 4), "1.5 bits": (0.62, 4), "2 bits": (0.92, 4), "3 bits": (1.9, 4), "7 bits": (30.0, 8)}


def symbols_of(n: int, sigma: float, width: int) -> Tensor:
    """Rounded Gaussians, small magnitudes first."""
    g = torch.Generator(device="cuda").manual_seed(0)
    q = (torch.randn(n, generator=g, device="cuda") * sigma).round().int()
    return torch.where(q < 0, -2 * q - 1, 2 * q).clamp(max=2**width - 1).to(torch.uint8)


def check(width: int, sigma: float, chunk: int) -> None:
    """The bytes of C++ for 2^22 symbols and an odd number of them, both ways."""
    for n in (1 << 22, 1_000_003):
        symbols = symbols_of(n, sigma, width)
        room = 1 + packed_bytes(n, width)
        out, here = torch.zeros(room, dtype=torch.uint8, device="cuda"), torch.zeros(room, dtype=torch.uint8)
        used = cpp.encode(symbols.cpu(), here[1:], width, chunk or cpp.LIKE_A_GPU)
        here[0] = native.CODED
        size = int(rans.encode([symbols], width, [out], chunk))
        assert size == 1 + used, (size, used)
        assert torch.equal(out[:size].cpu(), here[:size])
        back = torch.zeros_like(symbols)
        assert int(rans.decode([out[:size].clone()], width, [back])) == 0
        assert torch.equal(back, symbols)
        out[size // 2] ^= 1
        assert int(rans.decode([out[:size].clone()], width, [back])) != 0


@dataclass(frozen=True)
class Case:
    """Symbols, and room for their bytes and for them."""

    name: str
    width: int
    symbols: Tensor
    out: Tensor
    back: Tensor

    @classmethod
    def of(cls, name: str, n: int) -> Case:
        """`n` symbols of an entropy of SCALES."""
        sigma, width = SCALES[name]
        symbols = symbols_of(n, sigma, width)
        out = torch.empty(1 + packed_bytes(n, width), dtype=torch.uint8, device="cuda")
        return cls(name, width, symbols, out, torch.empty_like(symbols))

    def encode(self, chunk: int = 0, tuning: rans.Tuning = rans.TUNING) -> Tensor:
        """How many bytes, on the device."""
        return rans.encode([self.symbols], self.width, [self.out], chunk, tuning)

    def line(self, chunk: int, variant: str, tuning: rans.Tuning) -> str:
        """Both speeds."""
        data = self.out[: int(self.encode(chunk, tuning))].clone()
        up = milliseconds(lambda: self.encode(chunk, tuning))
        down = milliseconds(lambda: rans.decode([data], self.width, [self.back], tuning))
        n = self.symbols.numel()
        return (
            f"{self.name:9} chunk {int(data[2]):2}{' ' if chunk else '*'} {variant:14}"
            f" encode {n / up / 1e6:6.1f} GB/s  decode {n / down / 1e6:6.1f} GB/s  {8 * data.numel() / n:.4f} bits"
        )

    def parts(self) -> str:
        """Each kernel's time."""
        data = self.out[: int(self.encode())].clone()
        down = kernels(lambda: rans.decode([data], self.width, [self.back]))
        return f"  encode: {kernels(self.encode)}\n  decode: {down}"


VARIANTS = {
    "default": rans.TUNING,
    "no window": rans.Tuning(window=False),
    "nothing ahead": rans.Tuning(0, 0),
    "neither": rans.Tuning(0, 0, window=False),
    "further ahead": rans.Tuning(2048, 512),
    "tables far": rans.Tuning(near=False),
}


def main(log: int, sweep: bool) -> None:
    """Checks, then a line for each size of chunk and variant; a star marks the size that the rule chose."""
    for (name, (sigma, width)), chunk in itertools.product(SCALES.items(), (0, 13, 15, 17) if sweep else (0,)):
        check(width, sigma, chunk)
        print(f"bytes as C++: {name}, chunk {chunk}", flush=True)
    for name in SCALES:
        case = Case.of(name, 1 << log)
        for chunk in (0, 13, 14, 15, 16, 17) if sweep else (0,):
            for variant in VARIANTS if sweep and chunk in (0, 15) else ["default"]:
                print(case.line(chunk, variant, VARIANTS[variant]), flush=True)
        print(case.parts(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=int, default=26)
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    main(arguments.log, arguments.sweep)
