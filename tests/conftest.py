from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Two workers run on two cores, where torch's threads of one would spin while waiting for the other's. Set before
# torch starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.cuda.is_available():  # the kernels for GPUs are interpreted; set before Triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

from thinwire.lab import launch
from thinwire.lab.net.tools import call, check

launch.PRELOAD.append("tests.inherited")
settings.register_profile("thinwire", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("thinwire")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="rewrite the committed wire bytes")
    parser.addoption("--long", action="store_true", help="repeat what is rare as often as it takes to see it")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from schedule import Groups  # noqa: PLC0415  (pytest-xdist need not be there)

    return Groups(config, log)


@pytest.fixture
def write_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--write-golden"))


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether a test may take a minute: for races between processes, which show once in thousands of exchanges."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def root() -> None:
    """Skip where this machine cannot have namespaces at all, and say why."""
    probe = f"thinwire-probe-{os.getpid()}"
    try:
        check()
        call("ip", "netns", "add", probe)
    except OSError as error:
        pytest.skip(str(error))
    call("ip", "netns", "del", probe)
