"""An adapter whose framework is missing or too old says so in one sentence, with the line to write."""

from __future__ import annotations

import sys
from importlib import import_module, metadata

import pytest

ADAPTERS = {
    "transformers": ("transformers", "5.0", "4.57.3"),
    "accelerate": ("accelerate", "1.10", "1.9.2"),
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_framework_that_is_missing_or_too_old(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, oldest, found = ADAPTERS[adapter]
    name = f"thinwire.integrations.{adapter}"
    monkeypatch.delitem(sys.modules, name, raising=False)

    def missing(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(ImportError) as told:
        import_module(name)
    assert str(told.value) == f"{name} needs {package} >= {oldest}; write pip install 'thinwire[{adapter}]'"
    monkeypatch.setattr(metadata, "version", lambda _: found)
    with pytest.raises(ImportError) as told:
        import_module(name)
    assert str(told.value) == (
        f"{name} needs {package} >= {oldest}, and {found} is installed; write pip install 'thinwire[{adapter}]'"
    )


def test_the_trainer_needs_accelerate_too(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "thinwire.integrations.transformers"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(metadata, "version", {"transformers": "5.1", "accelerate": "1.2"}.__getitem__)
    with pytest.raises(
        ImportError, match=r"needs accelerate >= 1.10, and 1.2 is installed; .*thinwire\[transformers\]"
    ):
        import_module(name)
