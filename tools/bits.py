"""Bits of a wheel's C++ modules, with nothing but Python: `python bits.py <thinwire's folder> <the modules' ending>`.

For machines where torch cannot be had, such as an aarch64 under qemu: the lines that are printed must be those of
another machine, whose modules the tests of the tiers compare with the reference.
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
from array import array
from types import ModuleType
from typing import Any

N, BLOCK, KEY = 10_007, 512, [1, 2, 3, 4, 5, 6]


def load(folder: str, name: str, ending: str) -> ModuleType:
    """One compiled module, by its file."""
    spec = importlib.util.spec_from_file_location(name.rpartition("/")[2], f"{folder}/{name}{ending}")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def place(a: array[Any]) -> int:
    """Where its numbers are."""
    return a.buffer_info()[0]


def seen(*arrays: array[Any]) -> str:
    """Short names of what they hold."""
    return " ".join(hashlib.sha256(a.tobytes()).hexdigest()[:16] for a in arrays)


def main() -> None:
    """Print a line per operation."""
    folder, ending = sys.argv[1:]
    cpu = load(folder, "kernels/cpu/_cpu", ending)
    print(sys.version.split()[0], cpu.available(), file=sys.stderr)
    random.seed(1)
    x = array("f", [random.gauss(0, 1) for _ in range(N)])
    noise = array("I", [0] * N)
    cpu.noise("portable", KEY, N, place(noise), 2)
    print("noise", seen(noise))
    for spec in (
        [0, 0, 7, 4, 1],
        [0, 1, 7, 4, 1],
        [0, 0, 127, 8, 0],
        [2, 2, 1, 1, 0],
    ):  # kind, norm, levels, width, ...
        numbers, count = [*spec, 0.0, 0.0, 0.0], -(-N // BLOCK)
        scales, codes, residual, out = array("f", [0.0] * count), array("B", [0] * N), array("f", x), array("f", x)
        blocks = ("portable", numbers, N, BLOCK, 0, count)
        rest = (1.0, 1.0, place(scales), False, place(codes), True, 9, 2)
        total = cpu.encode(*blocks, KEY, place(x), 0, place(residual), *rest)
        cpu.decode_add(*blocks, place(scales), place(codes), place(out), 0.5, False, 2)
        print("quant", *spec, total, seen(scales, codes, residual, out))
    indices, values = array("q", [0] * 100), array("f", [0.0] * 100)
    load(folder, "kernels/cpu/_topk", ending).top(place(x), N, 100, place(indices), place(values), 2, 0)
    print("top", seen(indices, values))
    rotated = x[:8192]
    load(folder, "kernels/cpu/_hadamard", ending).hadamard(place(rotated), 2, 4096, 1, 0)
    print("hadamard", seen(rotated))
    eye, square = array("f", [1.0, 0.5, 0.25, 1.0]), x[:4000]
    load(folder, "kernels/cpu/_dct", ending).sandwich(place(square), 1000, 2, 2, place(eye), place(eye), 1, 0)
    print("dct", seen(square))
    symbols, coded = array("B", [min(15, int(abs(v) * 4)) for v in x]), array("B", [0] * N)
    codes_ = load(folder, "kernels/cpu/_codes", ending)
    used = codes_.huffman_encode(place(symbols), N, True, place(coded), N)
    print("huffman", used, seen(coded))
    load(folder, "engine/_ending", ending).let_late_threads_sleep()


if __name__ == "__main__":
    main()
