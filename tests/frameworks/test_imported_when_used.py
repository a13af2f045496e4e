"""`import thinwire` imports no framework, whichever are installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import thinwire as tw

FRAMEWORKS = ("transformers", "accelerate", "lightning", "ray", "tensorboard", "wandb", "torchft")


def test_thinwire_imports_no_framework_and_its_integrations_none_before_they_are_used() -> None:
    code = (
        "import sys, thinwire as tw; tw.integrations, dir(tw.integrations); "
        f"print([name for name in {FRAMEWORKS} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "[]\n"


def test_an_adapter_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match=r"has no 'keras'; there are .*torchft"):
        _ = tw.integrations.keras
