"""What an installation says of itself, and what it does without its C++ modules."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import torch

import thinwire
from thinwire.codecs import native
from thinwire.engine import ending
from thinwire.kernels import compiled, dispatch

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHY = "there was no C++17 compiler that works (on Debian: apt-get install g++)"


def test_versions_agree() -> None:
    version = PROJECT["project"]["version"]
    assert thinwire.__version__ == version
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_licences_are_named_and_there() -> None:
    for name in PROJECT["project"]["license-files"]:
        assert (ROOT / name).is_file()
    notice = (ROOT / "NOTICE").read_text()
    for project in ("nanobind", "robin-map", "zig"):  # what the compiled modules contain
        assert f"\n{project}\n" in notice
    assert (ROOT / "thinwire" / "py.typed").is_file()


def test_the_stable_abi_begins_where_the_wheels_of_single_versions_end() -> None:
    first = PROJECT["tool"]["scikit-build"]["wheel"]["py-api"]
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert first == "cp312"
    named = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert named == ["3.11", "3.12", "3.13", "3.14"]


def test_the_script_of_the_wheels_knows_every_compiled_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))  # as for a script: its folder comes first
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "tools" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    wheels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wheels)
    stubs = {str(p.relative_to(ROOT).with_suffix("")) for p in (ROOT / "thinwire").rglob("_*.pyi")}
    assert stubs == wheels.MODULES


def test_without_cpp_the_reference_serves_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "uncompiled", lambda: WHY)
    with pytest.warns(UserWarning, match="reference kernels.*because there was no C") as said:
        host = dispatch._host.__wrapped__()
    assert len(said) == 1
    assert {name: tier.name for name, tier in host.items()} == {"reference": "reference", "cpu": "reference"}
    monkeypatch.setattr(dispatch, "_host", lambda: host)
    assert dispatch.select(torch.zeros(3)).name == "reference"


def test_without_cpp_entropy_codes_are_refused_and_endings_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "uncompiled", lambda: WHY)
    monkeypatch.setattr(ending, "uncompiled", lambda: WHY)
    monkeypatch.setattr(ending, "_let_late_threads_sleep", lambda: pytest.fail("there is no such module"))
    monkeypatch.setattr(ending, "_process", [])
    with pytest.raises(
        ImportError, match=r"entropy codes are C\+\+ alone.*pip install --force-reinstall.*code='bits'"
    ):
        native.codes.__wrapped__()
    ending._at_exit()


def test_a_compiled_installation_is_not_taken_for_one_without() -> None:
    assert compiled.uncompiled() is None
