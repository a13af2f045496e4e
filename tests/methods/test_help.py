"""What `help(tw.methods.X)` shows: the equations of the method's file, and a line for every parameter."""

from __future__ import annotations

import inspect
import re
import sys

import pytest

from thinwire import methods
from thinwire.core.method import Method, method

EQUATION = re.compile(r"^    .*\S = \S", re.MULTILINE)


@pytest.mark.parametrize("name", methods.__all__)
def test_help_has_the_equations_and_every_parameter(name: str) -> None:
    make = getattr(methods, name)
    shown = inspect.getdoc(make) or ""
    above = inspect.cleandoc(sys.modules[make.__module__].__doc__ or "")
    assert shown.startswith(above)
    assert EQUATION.search(above), "no equation in the module's docstring"
    own = shown.removeprefix(above)
    explained = re.findall(r"^    (\w+) {3,}\S", own, re.MULTILINE)
    assert explained == list(inspect.signature(make).parameters)
    assert f">>> {name}(" in own


def test_a_factory_of_a_module_without_a_docstring_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine() -> Method:
        """Mine alone."""
        return methods.sgd()

    monkeypatch.setattr(sys.modules[__name__], "__doc__", None)
    monkeypatch.setattr("thinwire.core.method.METHODS.add", lambda name, make: None)
    assert method("mine")(mine).__doc__ == "Mine alone."
