from __future__ import annotations

import faulthandler
import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import final

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

# Two workers run on two cores, where torch's threads of one would spin while waiting for the other's. Set before
# torch starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("thinwire", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("thinwire")
STDERR = pytest.StashKey[int]()


@final
class Shown:
    """Doctests are looked for where there are some: importing all modules, and visiting all their objects, is slow.

    tests/test_package.py imports every module, once.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        found = yield
        if file_path.suffix != ".py" or ">>>" in file_path.read_text():
            return found
        return [one for one in found if not isinstance(one, DoctestModule)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="rewrite the committed wire bytes")
    parser.addoption("--long", action="store_true", help="repeat what is rare as often as it takes to see it")
    parser.addoption("--compressor", action="append", help="id: run the battery on these, whoever wrote them")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # while a test runs, what it writes to 2 is captured
    config.addinivalue_line("markers", "long: a case that only `--long` has; `make test-long` runs all of them")
    config.pluginmanager.register(Shown())  # a conftest would be asked for files of its own folder only


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[STDERR])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that do more with `--long` are chosen by `-m long`, as those are that only `--long` has."""
    if isinstance(item, pytest.Function) and "long" in item.fixturenames:
        item.add_marker(pytest.mark.long(more=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    later = {item for item in items if any("more" not in mark.kwargs for mark in item.iter_markers("long"))}
    config.hook.pytest_deselected(items=[*later])
    items[:] = [item for item in items if item not in later]


def pytest_collection(session: pytest.Session) -> None:
    """Import torch where tests run: not in the process that hands them out to workers, where xdist answers first."""
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():  # the kernels for GPUs are interpreted; set before Triton is imported
        os.environ.setdefault("TRITON_INTERPRET", "1")

    from thinwire.lab import launch  # noqa: PLC0415

    launch.PRELOAD.append("tests.inherited")
    if ids := session.config.getoption("--compressor"):
        from battery import INSTANCES  # noqa: PLC0415

        from thinwire import compressors  # noqa: PLC0415

        try:
            INSTANCES[:] = map(compressors.get, ids)  # before tests that have one case for each of them are imported
        except ValueError as error:
            raise pytest.UsageError(f"--compressor: {error}") from error


@pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_collection")
def collect_without_garbage() -> Generator[None, object, object]:
    """What imports make stays, so it is not searched for garbage: not on the way, and not in any test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> bool:
    """End the process and show where it hangs, as the method `thread` does, but without a thread per test."""
    seconds: float = settings.timeout  # type: ignore[attr-defined]  # pytest-timeout's
    seconds *= float(os.environ.get("THINWIRE_PATIENCE", "1"))  # see tests/ranks.py
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[STDERR])
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    faulthandler.cancel_dump_traceback_later()
    return True


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
    from thinwire.lab.net.tools import call, check  # noqa: PLC0415  (it imports torch)

    probe = f"thinwire-probe-{os.getpid()}"
    try:
        check()
        call("ip", "netns", "add", probe)
    except OSError as error:
        pytest.skip(str(error))
    call("ip", "netns", "del", probe)
