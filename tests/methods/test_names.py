"""One name per method: of its file, its factory and, with "-" for "_", its id."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import pytest

from thinwire import codecs, compressors, exchange, kernels, memory, methods, sync, topology
from thinwire.core.method import METHODS, Method

FACTORIES = sorted(name for name in dir(methods) if not name.startswith("_"))


def test_public_attributes_are_factories_and_every_id_is_one_of_them() -> None:
    assert sorted(methods.__all__) == FACTORIES
    assert sorted(name.replace("-", "_") for name in METHODS) == FACTORIES
    for name in FACTORIES:
        assert inspect.isfunction(getattr(methods, name)), name


@pytest.mark.parametrize("name", FACTORIES)
def test_file_factory_and_id_have_one_name(name: str) -> None:
    make = getattr(methods, name)
    made = make()
    assert isinstance(made, Method)
    assert made.id == name.replace("_", "-")
    assert make.__name__ == name
    assert make.__module__ == f"thinwire.methods.{name}"
    assert METHODS[made.id] is make


def test_every_file_is_a_method() -> None:
    files = {path.stem for path in Path(methods.__file__).parent.glob("[!_]*.py")}
    assert files == {*FACTORIES}


@pytest.mark.parametrize("axis", [codecs, compressors, exchange, kernels, memory, sync, topology])
def test_an_axis_shows_its_parts_and_no_modules(axis: ModuleType) -> None:
    shown = [name for name in dir(axis) if not name.startswith("_")]
    assert shown == sorted(axis.__all__)
    assert not any(isinstance(getattr(axis, name), ModuleType) for name in shown)
