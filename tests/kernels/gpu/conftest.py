"""Triton's interpreter, several times as fast: no overflow checks, and each module patched once per launch."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported


@pytest.fixture(autouse=True)
def quick_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter  # noqa: PLC0415

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
