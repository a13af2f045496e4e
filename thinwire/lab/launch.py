"""Start ranks on this machine: one process each, joined by gloo over a file, so that no port is chosen.

With `hosts=network` rank r runs on host r of a network lab: it sees the interfaces of that host and no others. Ranks
see no GPU unless they are to use one: torch synchronises the GPUs that it finds, even where no tensor lies on them.

A program is a function `program(say, *args)` at the top level of a module; `say(message)` reports to the parent
while it runs. When a rank fails, the others get a few seconds to notice by themselves; then everybody is killed.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinwire.lab.net import Network
from thinwire.lab.net.inside import enter

GRACE = 10.0  # seconds in which the other ranks may fail by themselves
PRELOAD = ["torch", "torch.distributed", "torch._dynamo", "thinwire"]
"""What the server imports once, for ranks to inherit. Making an optimizer imports `torch._dynamo`, which takes longer
than importing torch. None of them starts a thread that a rank would miss."""
Say = Callable[[Any], None]


@dataclass
class Outcome:
    """How one rank ended: a result, an error (a traceback), or neither when it was killed."""

    result: Any = None
    error: str = ""
    exitcode: int | None = None


def launch(
    program: Callable[..., Any],
    workers: int,
    *args: Any,
    timeout: float = 600.0,
    hear: Say = print,
    hosts: Network | None = None,
    gpu: bool = False,
) -> list[Any]:
    """The results of all ranks; RuntimeError with every rank's traceback when one fails."""
    ended = outcomes(program, workers, *args, timeout=timeout, hear=hear, hosts=hosts, gpu=gpu)
    failed = {rank: one for rank, one in enumerate(ended) if one.error or one.exitcode}
    if failed:
        lines = [f"rank {rank}: {one.error or f'ended with status {one.exitcode}'}" for rank, one in failed.items()]
        raise RuntimeError("\n".join(lines))
    return [one.result for one in ended]


def outcomes(
    program: Callable[..., Any],
    workers: int,
    *args: Any,
    timeout: float = 600.0,
    grace: float = GRACE,
    hear: Say = print,
    hosts: Network | None = None,
    gpu: bool = False,
) -> list[Outcome]:
    """How each rank ended, whatever happened to it; after a failure the others have `grace` seconds."""
    if workers < 1:
        raise ValueError(f"a run needs at least one worker; got {workers}: write --workers 4")
    if hosts is not None and workers > hosts.hosts:
        raise ValueError(
            f"{workers} ranks on {hosts.hosts} hosts: each takes one; write Network({workers}, {hosts.rate!r})"
        )
    context = inheriting()
    with tempfile.TemporaryDirectory() as folder:
        resource_tracker.ensure_running()  # it unblocks SIGINT when it starts, so it starts before the block
        ranks: list[_Rank] = []
        try:
            with _deaf():
                for seat in _seats(workers, Path(folder), hosts, gpu=gpu):
                    ranks.append(_Rank.start(context, seat, program, args))
            _listen(ranks, time.monotonic() + timeout, grace, hear)
        finally:
            for rank in ranks:
                rank.stop(Path(folder))
    return [rank.outcome for rank in ranks]


def inheriting() -> ForkServerContext:
    """How processes start that inherit imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


@contextmanager
def _deaf() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, since an interrupted start leaves processes behind.

    Processes that start inside it inherit the mask, so that only this process acts on Ctrl-C. The mask covers one
    thread, and others may receive the signal, so its handler is replaced too. Only the main thread may set a handler,
    and only it is interrupted.
    """
    heard: list[bool] = []
    main = threading.current_thread() is threading.main_thread()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda *_: heard.append(True)) if main else None
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if main:
            signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        if heard:
            signal.raise_signal(signal.SIGINT)


@dataclass(frozen=True)
class _Seat:
    """Where one rank runs."""

    rank: int
    workers: int
    folder: Path
    namespace: str | None  # of its host; None is this machine itself
    gpu: bool


def _seats(workers: int, folder: Path, hosts: Network | None, *, gpu: bool) -> list[_Seat]:
    places = [None if hosts is None else hosts.namespace(rank) for rank in range(workers)]
    return [_Seat(rank, workers, folder, place, gpu) for rank, place in enumerate(places)]


@dataclass
class _Rank:
    number: int
    process: ForkServerProcess
    pipe: Connection
    outcome: Outcome
    open: bool = True

    @classmethod
    def start(
        cls, context: ForkServerContext, seat: _Seat, program: Callable[..., Any], args: tuple[Any, ...]
    ) -> _Rank:
        here, there = context.Pipe()
        process = context.Process(target=_main, args=(seat, there, program, args), daemon=True)
        process.start()
        there.close()
        return cls(seat.rank, process, here, Outcome())

    def read(self, hear: Say) -> None:
        """Take one message; the pipe closes when the process ends."""
        try:
            kind, value = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.open = False
            self.process.join()
            self.outcome.exitcode = self.process.exitcode
            return
        if kind == "say":
            hear(value)
        elif kind == "error":
            self.outcome.error = value
        else:
            self.outcome.result = value

    def stop(self, folder: Path) -> None:
        """Kill the process if it still runs, and record where it was."""
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            self.outcome.exitcode = self.process.exitcode
            log = folder / f"stack{self.number}"
            where = log.read_text() if log.exists() else ""
            self.outcome.error = self.outcome.error or f"did not end in time and was killed\n{where}"
        self.pipe.close()


def _listen(ranks: list[_Rank], deadline: float, grace: float, hear: Say) -> None:
    while running := [rank for rank in ranks if rank.open]:
        left = deadline - time.monotonic()
        if left <= 0:
            for rank in running:
                os.kill(rank.process.pid or 0, signal.SIGUSR1)  # each writes where it hangs
            time.sleep(0.5)
            return
        by_pipe = {rank.pipe: rank for rank in running}
        for pipe in wait(list(by_pipe), timeout=min(left, 1.0)):
            rank = by_pipe[pipe]  # type: ignore[index]
            was = rank.outcome.error
            rank.read(hear)
            if (rank.outcome.error and not was) or rank.outcome.exitcode:
                deadline = min(deadline, time.monotonic() + grace)


def _main(seat: _Seat, pipe: Connection, program: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """What the process of one rank does, from start to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops everybody
    rank, workers = seat.rank, seat.workers
    try:
        log = (seat.folder / f"stack{rank}").open("w")
    except FileNotFoundError:
        os._exit(1)  # Ctrl-C came while this process started, and the others have already ended
    faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)
    try:
        if seat.namespace is not None:
            enter(seat.namespace)  # before any thread starts
        if not seat.gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch is there already, but has not looked for GPUs
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
        store = dist.FileStore(str(seat.folder / "store"), workers)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=timedelta(minutes=5))
        result = program(lambda message: _tell(pipe, "say", message), *args)
        with suppress(RuntimeError):  # another may be through, and gone, before this one has read its last word
            dist.barrier()  # gloo aborts now and then when one rank tears down while another still talks
        dist.destroy_process_group()
        _tell(pipe, "result", result)
    except BaseException:
        _tell(pipe, "error", traceback.format_exc())
        os._exit(1)  # the other ranks may be gone, so there is no orderly shutdown


def _tell(pipe: Connection, kind: str, value: Any) -> None:
    pipe.send_bytes(pickle.dumps((kind, value)))  # torch's own pickling would leave tensors in the sender's memory
