"""One file per rank beside a checkpoint, for frameworks in which rank 0 alone writes it.

The files of `runs/last.ckpt` are `runs/thinwire/last.ckpt.rank0`, `.rank1` and so on: in a folder of their own, since
frameworks look for checkpoints by the names that they find beside one. What a file holds goes with one checkpoint,
and a token in both says with which.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem

from thinwire.core import files
from thinwire.integrations._state_file import read_state

FOLDER = "thinwire"


def place(path: str | os.PathLike[str], rank: int) -> str:
    """Where the file of a rank lies; of a link, beside what it points to."""
    text = os.fspath(path)
    text = os.path.realpath(text) if os.path.islink(text) else text
    folder, name = os.path.split(text.rstrip("/"))
    return os.path.join(folder, FOLDER, f"{name}.rank{rank}")


def save(path: str | os.PathLike[str], rank: int, state: Mapping[str, Any]) -> None:
    """Write what `rank` has to keep; a file is complete, or it is not there."""
    target = place(path, rank)
    system, inside = fsspec.core.url_to_fs(target)
    system.makedirs(os.path.dirname(inside), exist_ok=True)
    if isinstance(system, LocalFileSystem):
        files.save(dict(state), inside)
        return
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    with system.transaction, system.open(inside, "wb") as file:
        file.write(buffer.getvalue())


def load(path: str | os.PathLike[str], rank: int, token: str) -> dict[str, Any]:
    """What `rank` wrote with the checkpoint; ValueError if it is not there, or goes with another checkpoint."""
    target = place(path, rank)
    system, inside = fsspec.core.url_to_fs(target)
    if not system.exists(inside):
        raise ValueError(f"{target} is missing, which was written with {os.fspath(path)}; copy it from rank {rank}")
    with system.open(inside, "rb") as file:
        state = read_state(file, target, "token")
    if state["token"] != token:
        raise ValueError(f"{target} was not written with {os.fspath(path)}, but with another checkpoint of that name")
    return state


def remove(path: str | os.PathLike[str], rank: int) -> None:
    """Remove the file of a rank, if there is one."""
    system, inside = fsspec.core.url_to_fs(place(path, rank))
    if system.exists(inside):
        system.rm(inside)
