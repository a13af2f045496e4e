"""Kernels run on a GPU where there is one, and otherwise, hurried, in Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import quick_types
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    pytest.importorskip("triton", reason="the GPU's kernels need Triton")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def overflow() -> Iterator[None]:
    """NumPy, which interprets, does not warn of infinities and NaN."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(autouse=True)
def quick_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """No overflow checks, each module of kernels is patched once per launch, and what is known of a type is kept."""
    if torch.cuda.is_available():
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="the GPU's kernels need Triton")
    patched: set[int] = set()
    launch = interpreter.GridExecutor.__call__

    def launched(self: Any, *args: object, **kwargs: object) -> None:
        patched.clear()
        launch(self, *args, **kwargs)

    def called(self: Any, *args: object, **kwargs: object) -> object:
        if id(self.fn.__globals__) not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(id(self.fn.__globals__))
        return self.rewrite()(*args, **kwargs)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)
    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", called)
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    monkeypatch.setattr(interpreter.interpreter_builder, "options", options)
    quick_types.install(monkeypatch, interpreter)
    shared = pytest.importorskip("thinwire.kernels.gpu.launch", reason="the GPU's kernels need Triton")
    monkeypatch.setattr(shared, "ROWS", 4)  # a block of our short vectors still takes several turns
