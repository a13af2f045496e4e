"""The table of operations by families: complete, importable, and asked by the file that holds the definition."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from thinwire import kernels
from thinwire.kernels import selection
from thinwire.kernels.table import TABLE, find, load

FILES = sorted({operation.split(".")[0] for operation in TABLE})
CODECS = {"rans"}


def module_of(file: str) -> ModuleType:
    """Where the definitions of a file's operations are."""
    return importlib.import_module(f"thinwire.{'codecs' if file in CODECS else 'kernels'}.{file}")


def asked(file: str) -> dict[str, str]:
    """The operations that a file asks the table for, each with the name of its definition."""
    tree = ast.parse(inspect.getsource(module_of(file)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "find"]
    return {ast.literal_eval(call.args[0]): ast.unparse(call.args[2]) for call in calls}


def test_every_operation_has_a_definition() -> None:
    found = {operation: (file, plain) for file in FILES for operation, plain in asked(file).items()}
    assert found.keys() == TABLE.keys()
    for operation, (file, plain) in found.items():
        assert operation.split(".")[0] == file
        assert callable(getattr(module_of(file), plain))


@pytest.mark.parametrize("family", ["cpu", "gpu"])
def test_every_entry_imports_and_takes_what_the_definition_takes(family: str) -> None:
    if family == "gpu" and find_spec("triton") is None:
        pytest.skip("the GPU's kernels need Triton")
    for file in FILES:
        module = module_of(file)
        for operation, plain in asked(file).items():
            function = load(operation, family)
            if function is not None:
                assert list(inspect.signature(function).parameters) == list(
                    inspect.signature(getattr(module, plain)).parameters
                ), operation


def test_families_are_those_of_the_tiers() -> None:
    assert {family for row in TABLE.values() for family in row} <= {"cpu", "gpu"}
    for name in kernels.names():
        assert kernels.get(name).family == name.split("-")[0]


def test_cpp_refuses_a_tensor_that_is_elsewhere() -> None:
    with kernels.force("cpu"), pytest.raises(ValueError, match="run on CPU tensors, and the tensor is on meta"):
        selection.top(torch.empty(3, device="meta"), 1)


@pytest.mark.parametrize(("device", "entered"), [(0, []), (1, [1])])
def test_what_is_launched_is_launched_where_the_tensor_is(
    monkeypatch: pytest.MonkeyPatch, device: int, entered: list[int]
) -> None:
    seen: list[int] = []

    @contextmanager
    def enter(device: int) -> Iterator[None]:
        seen.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", enter)
    x: Any = SimpleNamespace(is_cpu=False, is_cuda=True, get_device=lambda: device, device=device)
    with kernels.force("reference"):
        assert find("selection.keep_at", x, divmod)(7, 2) == (3, 1)
    assert seen == entered
