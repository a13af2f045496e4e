"""What an installation says of itself, and what it does without its C++ modules."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

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


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))  # as for a script: its folder comes first
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "tools" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_of_the_wheels_knows_every_compiled_module(wheels: Any) -> None:
    stubs = {str(p.relative_to(ROOT).with_suffix("")) for p in (ROOT / "thinwire").rglob("_*.pyi")}
    assert stubs == wheels.MODULES


def one_python(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> None:
    """Let the path hold one Python, which says that it is this version, with headers."""
    (folder / "Python.h").touch()
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\necho "{version.replace(".", " ")} False {folder}"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.parametrize(
    ("version", "kind", "left_out", "option"),
    [("3.11", "cp311", "CPython 3.12 or later", "--python312"), ("3.13", "abi3", "CPython 3.11", "--python311")],
)
def test_with_one_python_its_wheels_are_built_and_the_others_named(
    wheels: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    version: str,
    kind: str,
    left_out: str,
    option: str,
) -> None:
    one_python(monkeypatch, tmp_path, version)
    built: list[tuple[str, str]] = []

    def build(bin_: Path, arch: str, out: Path) -> Path:
        built.append((bin_.name, arch))
        (tmp_path / "made.whl").touch()
        return tmp_path / "made.whl"

    monkeypatch.setattr(wheels, "DIST", tmp_path / "dist")
    monkeypatch.setattr(wheels, "tools", lambda kind, python: Path(kind))
    monkeypatch.setattr(wheels, "build", build)
    monkeypatch.setattr(wheels, "check", lambda bin_, arch, wheel: wheel)
    monkeypatch.setattr(wheels, "sdist", lambda bin_: "made.tar.gz")
    monkeypatch.setattr(sys, "argv", ["wheels.py"])
    wheels.main()
    assert built == [(kind, "x86_64"), (kind, "aarch64")]
    out = capsys.readouterr().out
    assert "made.tar.gz" in out
    assert f"left out: wheels for {left_out}: there is no {left_out} with headers here" in out
    assert f'write ARGS="{option} <its path>"' in out


def test_without_debian_a_wheel_for_this_machine_is_built(
    wheels: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_python(monkeypatch, tmp_path, "3.14")
    monkeypatch.setattr(wheels, "DIST", tmp_path / "dist")
    monkeypatch.setattr(wheels, "WORK", tmp_path / "work")  # nothing is downloaded, and there is no apt-get
    monkeypatch.setattr(wheels, "tools", lambda kind, python: tmp_path)
    monkeypatch.setattr(wheels, "build", lambda bin_, arch, out: wheels.libstdcxx(arch))
    monkeypatch.setattr(wheels, "own_wheel", lambda: "own.whl  for this machine alone")
    monkeypatch.setattr(wheels, "sdist", lambda bin_: "made.tar.gz")
    monkeypatch.setattr(sys, "argv", ["wheels.py", "--arch", "aarch64"])
    wheels.main()
    out = capsys.readouterr().out
    assert "own.whl  for this machine alone" in out
    assert (
        "left out: the aarch64 wheel for CPython 3.12 or later: libstdc++ comes from Debian 12, and there is no"
        in out
    )
    monkeypatch.setattr(wheels, "own_wheel", partial(wheels.attempt, "/bin/false", what="pip builds none"))
    with pytest.raises(SystemExit, match="no wheel was built"):
        wheels.main()
    assert "alone: pip builds none (status 1)" in capsys.readouterr().out


def test_development_pins_nothing_that_torch_pins() -> None:
    """torch for CUDA, which the index has, requires one version of Triton: `make demo` failed where pip took that."""
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    torch_pins = {"triton", "cuda-toolkit", "cuda-bindings", *(name for name in pinned if name.startswith("nvidia-"))}
    assert pinned & torch_pins == set()
    assert "|| $(BIN)/python -m pip install --quiet $(TRITON)" in (ROOT / "Makefile").read_text()


def test_the_first_command_of_readme_is_pip_install_in_the_clone() -> None:
    """`make wheels` needs more than one Python to build everything; `pip install .` works with any one."""
    section = (ROOT / "README.md").read_text().split("## Installing")[1]
    commands = section.split("```")[1].split("\n")[1:-1]
    assert commands[:2] == ["python3 -m venv env", "env/bin/pip install '.[lab]'"]
    page = (ROOT / "docs" / "installing.md").read_text()
    assert page.split("```")[1].split("\n")[1:-1] == ["python3 -m venv env", "env/bin/pip install ."]


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
