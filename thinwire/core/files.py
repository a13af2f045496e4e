"""Files: a checkpoint is written whole, or the one before it stays."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, final

import torch

PART = ".part"
UNLOCKED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # file systems that know no locks


def save(state: Any, path: str | os.PathLike[str]) -> None:
    """As `torch.save(state, path)`, but what is at `path` is always a whole file: the new one or the one before it.

    It is written beside, as `<path>.part`, and takes its place when it is on the disk. If that fails (a full disk, a
    process that is killed), the previous file is untouched. A `.part` that a killed process left is written over by
    the next save. Several processes that save to one path do so one after the other.
    """
    target = Path(os.path.realpath(path))  # a link goes on pointing to what it does
    with _beside(target) as (file, part):
        try:
            _write(state, file)
            file.flush()
            os.fsync(file.fileno())
            part.replace(target)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is part of the folder, not of the file
    finally:
        os.close(folder)


def _write(state: Any, file: IO[bytes]) -> None:
    """torch wraps what the file raised, such as a full disk, in an error of its own."""
    kept: Any = _Kept(file)
    try:
        torch.save(state, kept)
    except RuntimeError:
        if kept.error is not None:
            raise kept.error from None
        raise


@final
class _Kept:
    """A file that keeps the error of a write."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def _beside(target: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """An empty file beside the target that no other process writes to."""
    part = target.with_name(target.name + PART)
    while True:
        with part.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in UNLOCKED:
                    raise
            if not _same(file, part):  # whoever had it first has given it the target's name meanwhile
                continue
            file.truncate(0)
            yield file, part
            return


def _same(file: IO[bytes], part: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), part.stat())
    except FileNotFoundError:
        return False
