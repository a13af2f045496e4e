"""Real processes for tests: `on_ranks(program, 4)` runs a function of the test's file on 4 ranks."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinwire.engine.groups import Lent, Wanted, lend
from thinwire.engine.meeting import Meeting
from thinwire.engine.store import Place
from thinwire.engine.watch import Watch
from thinwire.lab.launch import GRACE, Outcome, Say, launch, outcomes

PATIENCE = float(os.environ.get("THINWIRE_PATIENCE", "1"))
"""How much longer than usual processes may take, on a machine that many share; `make test-torch` sets it."""
TIMEOUT = 100.0


def on_ranks(program: Callable[..., Any], workers: int, *args: Any, timeout: float = TIMEOUT) -> list[Any]:
    """What `program(*args)` returns on each rank; every failure is raised here."""
    return launch(_load_and_run, workers, *_where(program), *args, timeout=timeout * PATIENCE, gpu=True)


def endings(
    program: Callable[..., Any], workers: int, *args: Any, timeout: float = TIMEOUT, grace: float = GRACE
) -> list[Outcome]:
    """How each rank ended, for tests in which some are meant to fail."""
    timeout, grace = timeout * PATIENCE, grace * PATIENCE
    return outcomes(_load_and_run, workers, *_where(program), *args, timeout=timeout, grace=grace, gpu=True)


def as_torchrun(program: Callable[..., Any], workers: int, *args: Any) -> list[str]:
    """What `program(*args)` prints on each rank, where it finds what torchrun leaves for it: no group, and variables.

    A test of torchrun itself takes seconds of imports; examples/plain_loop.py is run by it.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        return on_ranks(_by_variables, workers, folder, store.port, *_where(program), *args)


def _by_variables(folder: str, port: int, path: str, name: str, *args: Any) -> str:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        _load_and_run(print, path, name, *args)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    return printed.getvalue()


def lent(wanted: Wanted) -> Lent:
    """Process groups of all ranks, for tests that need no engine; every rank calls it."""
    world = dist.group.WORLD
    assert world is not None
    watch = Watch(Place(world), dist.get_rank(), dist.get_world_size())
    found = lend(world, wanted, Meeting(watch, wanted.timeout, world))
    watch.stop()
    return found


def _where(program: Callable[..., Any]) -> tuple[str, str]:
    return program.__code__.co_filename, program.__qualname__


def _load_and_run(say: Say, path: str, name: str, *args: Any) -> Any:
    """Test modules have no importable name, so the file is loaded. Threads of tiny nets would only spin."""
    torch.set_num_threads(1)
    module_name = f"ranks_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)(*args)
