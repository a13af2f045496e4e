"""What adapters say when their framework is missing or too old; the frameworks themselves are in tests/frameworks."""

from __future__ import annotations

from importlib import metadata

import pytest

from thinwire.integrations._require import require


def test_a_missing_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(ImportError) as told:
        require("lightning", (2, 5))
    assert str(told.value) == (
        "thinwire.integrations.lightning needs lightning >= 2.5; write pip install 'thinwire[lightning]'"
    )


@pytest.mark.parametrize(("found", "enough"), [("2.4.9", False), ("2.5.0rc1", True), ("2.10", True), ("3.0", True)])
def test_a_framework_that_is_too_old(monkeypatch: pytest.MonkeyPatch, found: str, *, enough: bool) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: found)
    if enough:
        require("lightning", (2, 5))
        return
    with pytest.raises(
        ImportError, match=r"needs lightning >= 2.5, and 2.4.9 is installed; write pip install 'thinw"
    ):
        require("lightning", (2, 5))
