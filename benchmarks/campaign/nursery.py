"""Processes that start quickly and end as a script does.

The nursery is a process that has imported torch and thinwire and forks a child for every request. A child returns
from the nursery's main program when its work is over, so the interpreter shuts down as it does after a user's script,
with atexit functions and destructors of C++ objects: a child of `multiprocessing` skips both, and with them aborts of
of threads that nobody has joined.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, final

import torch._dynamo  # making an optimizer would import it in every child
import torch.distributed.fsdp

from thinwire.lab.net.inside import enter

LOOK = 0.02  # seconds between looks at the children
PR_SET_PDEATHSIG = 1


class Ending(NamedTuple):
    """How a child ended: its exit status, negative for a signal, or None if it had to be killed; and when."""

    status: int | None
    when: float  # time.monotonic()


@final
class Nursery:
    """The parent's side; use it with `with`. Not for several threads."""

    def __init__(self) -> None:
        places = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables
        )
        self._unread = b""
        self._started: list[int] = []
        self._ended: dict[int, Ending] = {}
        assert self._line(60.0) == {"ready": True}

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def start(self, work: str, log: Path, namespace: str | None = None, **arguments: Any) -> int:
        """Fork a child that calls `work`, "module.function" of this package; its output goes to `log`."""
        request = {"work": work, "log": str(log), "namespace": namespace, "arguments": arguments}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        while not self._started:
            self._hear(10.0)
        return self._started.pop()

    def wait(self, children: list[int], seconds: float) -> dict[int, Ending]:
        """How these children ended; those that still run after so many seconds are killed."""
        until = time.monotonic() + seconds
        while (late := [child for child in children if child not in self._ended]) and time.monotonic() < until:
            self._hear(until - time.monotonic())
        endings = {child: self._ended.pop(child) for child in children if child in self._ended}
        for child in late:
            os.kill(child, signal.SIGKILL)
        while missing := [child for child in late if child not in self._ended]:
            self._hear(10.0)
            assert self._process.poll() is None, f"the nursery ended before {missing}"
        for child in late:
            endings[child] = Ending(None, self._ended.pop(child).when)
        return endings

    def _hear(self, seconds: float) -> None:
        message = self._line(max(0.0, seconds))
        if "started" in message:
            self._started.append(message["started"])
        elif "ended" in message:
            self._ended[message["ended"]] = Ending(message["status"], message["when"])

    def _line(self, seconds: float) -> dict[str, Any]:
        """The next message, or nothing if none comes in time."""
        assert self._process.stdout is not None
        pipe, until = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                return {}
            data = os.read(pipe, 65536)
            if not data:
                raise RuntimeError("the nursery has ended")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message


def _send(**message: Any) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _serve() -> dict[str, Any] | None:
    """Fork for every request; returns the request in the child, and None in the nursery when its parent is gone."""
    unread = b""
    _send(ready=True)
    while True:
        if select.select([0], [], [], LOOK)[0]:
            data = os.read(0, 65536)
            if not data:
                return None
            unread += data
        while b"\n" in unread:
            line, unread = unread.split(b"\n", 1)
            child = os.fork()
            if child == 0:
                request: dict[str, Any] = json.loads(line)
                return request
            _send(started=child)
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if child == 0:
                break
            _send(ended=child, status=os.waitstatus_to_exitcode(status), when=time.monotonic())


def _work(request: dict[str, Any]) -> None:
    """What a child does: its own output, its network, then the work."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    if request["namespace"] is not None:
        enter(request["namespace"])
    module, function = request["work"].rsplit(".", 1)
    getattr(importlib.import_module(f"campaign.{module}"), function)(**request["arguments"])


def main() -> None:
    """The nursery's own program, and each child's."""
    torch.set_num_threads(1)
    request = _serve()
    if request is not None:
        _work(request)


if __name__ == "__main__":
    main()
