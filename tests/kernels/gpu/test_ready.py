"""Compiled kernels that are started directly: one look-up through Triton for each variant, never the wrong one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from thinwire.kernels.gpu.ready import Ready, kind

X = torch.zeros(64)


class Kernel:
    """Like a Triton kernel of (x, n, SIZE): it compiles a variant for each size, and notes who was started."""

    arg_names = ("x", "n", "SIZE")
    params = [SimpleNamespace(is_constexpr=name.isupper()) for name in arg_names]  # noqa: RUF012

    def __init__(self, *, interprets: bool = False) -> None:
        self.looked_up, self.interprets = 0, interprets
        self.started: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def run(x: torch.Tensor, n: int, SIZE: int, num_warps: int = 4) -> Any:
            self.looked_up += 1
            return None if self.interprets else Compiled(self, SIZE, num_warps)

        return run


class Compiled:
    def __init__(self, kernel: Kernel, size: int, warps: int) -> None:
        self.kernel, self.variant = kernel, (size, warps)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert len(grid) == 3
        return lambda *args: self.kernel.started.append((*self.variant, grid, args[1:]))


def test_the_second_launch_goes_to_the_compiled_variant() -> None:
    kernel = Kernel()
    ready = Ready(kernel)
    ready[(5,)](X, 48, SIZE=8)
    assert (kernel.looked_up, kernel.started) == (1, [])
    ready[(7, 2)](X, 64, SIZE=8)  # by name, or by position
    ready[(9,)](X, 16, 8)
    ready[(9,)](X, 16, 8)
    assert kernel.looked_up == 2
    assert kernel.started == [(8, 4, (7, 2, 1), (64, 8)), (8, 4, (9, 1, 1), (16, 8))]


def test_what_triton_would_compile_anew_is_looked_up() -> None:
    kernel = Kernel()
    ready = Ready(kernel)
    odd = torch.zeros(65)[1:]  # 4 bytes off
    for x, n, size, warps in (
        (X, 48, 8, 4),
        (X, 48, 16, 4),
        (X, 48, 8, 2),
        (X, 7, 8, 4),
        (X, 1, 8, 4),
        (odd, 48, 8, 4),
    ):
        ready[(1,)](x, n, SIZE=size, num_warps=warps)
    ready[(1,)](X.double(), 48, SIZE=8, num_warps=4)
    ready[(1,)](X, 1 << 40, SIZE=8, num_warps=4)
    assert (kernel.looked_up, kernel.started) == (8, [])


def test_the_interpreter_is_always_asked() -> None:
    kernel = Kernel(interprets=True)
    for _ in range(3):
        Ready(kernel)[(1,)](X, 48, SIZE=8)
    assert kernel.looked_up == 3


def test_kinds() -> None:
    assert kind(True) != kind(1)
    assert kind(3.0) is float
    assert kind(X) != kind(X[1:])
