"""One file per rank in the folder of a checkpoint, for frameworks in which rank 0 alone writes what they keep.

`thinwire-rank0.pt`, `thinwire-rank1.pt` and so on hold the memories. Where models are exchanged, ranks differ, and
their optimizers and buffers with them: these are in the files, too. Files that were saved together have one token.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist

from thinwire.comm.control import gathered
from thinwire.core.files import save
from thinwire.integrations._agree import agreed
from thinwire.integrations._state_file import read_state

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from thinwire.engine.checkpoint import OnResize
    from thinwire.engine.wire import Wire


@final
class RankFiles:
    """What goes with the checkpoints of one wire; every rank makes one. `name` tells several wires apart."""

    def __init__(self, wire: Wire, model: nn.Module, optimizer: Optimizer, *, name: str = "thinwire") -> None:
        self.wire, self._model, self._optimizer, self._name = wire, model, optimizer, name
        self._run, self._saved = gathered(uuid.uuid4().hex)[0], 0

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write this rank's file, and wait for the others: a checkpoint is complete when all are there."""
        self._saved += 1
        state = {"token": f"{self._run} {self._saved}", "ranks": dist.get_world_size(), **self._own()}

        def write() -> None:
            path = self._path(folder, dist.get_rank())
            path.parent.mkdir(parents=True, exist_ok=True)
            save(state, path)

        agreed(write)

    def load(self, folder: str | os.PathLike[str], on_resize: OnResize) -> bool:
        """Go on where the checkpoint was saved; False if it was saved without thinwire."""
        size = dist.get_world_size()
        states = agreed(lambda: self._read(folder, on_resize))
        tokens = gathered(states[0]["token"] if states else "")
        if not any(tokens):
            return False
        if len({*tokens}) > 1:
            lacking = [rank for rank, token in enumerate(tokens) if not token]
            wrong = f"ranks {lacking} find no file" if lacking else "the ranks' files were not saved together"
            raise ValueError(
                f"{wrong} of thinwire in {os.fspath(folder)}; copy all {self._name}-rank*.pt of one checkpoint there"
            )
        self.wire.load_state_dict([state["wire"] for state in states], on_resize=on_resize)
        if states[0]["ranks"] == size and "optimizer" in states[0]:
            self._optimizer.load_state_dict(states[0]["optimizer"])
            with torch.no_grad():
                for name, value in self._model.named_buffers():
                    value.copy_(states[0]["buffers"][name])
        return True

    def any_in(self, folder: str | os.PathLike[str]) -> bool:
        """Whether this rank finds a file there, its own or that of rank 0."""
        return bool(self._there(folder))

    def _there(self, folder: str | os.PathLike[str]) -> list[Path]:
        some = (self._path(folder, dist.get_rank()), self._path(folder, 0))
        return [path for path in some if path.exists()]

    def _path(self, folder: str | os.PathLike[str], rank: int) -> Path:
        return Path(folder) / f"{self._name}-rank{rank}.pt"

    def _own(self) -> dict[str, Any]:
        own: dict[str, Any] = {"wire": self.wire.state_dict()}
        if self.wire.method.sync.of.models:
            own["optimizer"] = self._optimizer.state_dict()
            own["buffers"] = {name: value.clone() for name, value in self._model.named_buffers()}
        return own

    def _read(self, folder: str | os.PathLike[str], on_resize: OnResize) -> list[dict[str, Any]]:
        """The state of this rank; on another number of ranks, the states of all where their mean is taken."""
        rank, size = dist.get_rank(), dist.get_world_size()
        there = self._there(folder)
        if not there:
            return []
        first = _read_file(there[0])
        ranks = first["ranks"]
        if ranks == size:
            if not self._path(folder, rank).exists():
                raise ValueError(f"{self._path(folder, rank)} is missing; copy it from where rank {rank} wrote it")
            return [first]
        some = range(ranks) if on_resize == "mean" else [0]
        return [_read_file(self._path(folder, one)) for one in some]


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return read_state(path, path, "token", "ranks", "wire")
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; copy it from the rank that wrote it") from None
