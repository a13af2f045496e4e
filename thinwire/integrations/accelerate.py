"""Accelerate: one line after `prepare`.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    wire = tw.integrations.accelerate.attach(accelerator, model, optimizer, tw.methods.qsgd(bits=4))

Gradients travel in the hook of DDP, in which `prepare` has put the model; a method that exchanges models takes DDP's
place (`_under_ddp.py`). `accelerator.save_state` writes registered objects on the main process alone, but residuals
are each rank's own: every rank writes a file into the same folder (`_rank_files.py`), and `load_state` reads it.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, final

from torch.nn.parallel import DistributedDataParallel

from thinwire.core.method import Method
from thinwire.engine.checkpoint import OnResize
from thinwire.engine.misuse import check_method_type, tuple_of
from thinwire.engine.optimizers import followed
from thinwire.engine.settings import Settings
from thinwire.engine.skipping import OnNonfinite, check_policy
from thinwire.engine.wire import Wire
from thinwire.integrations._agree import agreed
from thinwire.integrations._rank_files import RankFiles
from thinwire.integrations._require import require
from thinwire.integrations._under_ddp import bare, check_carried, uncompiled, wire_under

require("accelerate", (1, 10))

from accelerate import Accelerator  # noqa: E402  (what is missing is said above)

if TYPE_CHECKING:
    import os

    from torch import nn
    from torch.optim import Optimizer

    from thinwire.engine.hooks import Removable


def attach(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: Method,
    *,
    min_size: int | None = None,
    exclude: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 600.0,
    on_nonfinite: OnNonfinite = "skip",
    on_resize: OnResize = "mean",
) -> Wire | None:
    """Exchange the gradients or models of what `accelerator.prepare` returned; every rank calls it.

    See `thinwire.attach` for the arguments and for what is returned; in one process there is nothing to exchange, and
    nothing is returned. Memories are part of `accelerator.save_state` and `load_state`; `on_resize` is for a state of
    another number of ranks. Several optimizers go into a list. To accumulate gradients, write
    `with accelerator.accumulate(model):`.
    """
    check_method_type(method, "attach(accelerator, model, optimizer, {})")
    check_policy(on_nonfinite)
    check_carried(method, "Accelerate")
    if not isinstance(accelerator, Accelerator):
        raise TypeError(
            f"attach takes an Accelerator; got {type(accelerator).__name__}: "
            "write attach(accelerator, model, optimizer, method)"
        )
    if accelerator.num_processes == 1:
        warnings.warn("Accelerate runs one process, so that thinwire has nothing to exchange", stacklevel=2)
        return None
    ddp = uncompiled(model)
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(
            f"attach takes what accelerator.prepare returns for DDP, and this is {type(ddp).__name__}; write model, "
            "optimizer = accelerator.prepare(model, optimizer) before it, without FSDP and DeepSpeed"
        )
    settings = Settings(min_size, tuple_of(exclude), seed, timeout, on_nonfinite=on_nonfinite)
    hook_of = "DistributedDataParallelKwargs() without comm_hook"
    several = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    inner = followed([bare(one) for one in several], method)
    wire = wire_under(ddp, inner, method, settings, hook_of=hook_of)
    live = _live.setdefault(accelerator, [])
    number = next(free for free in count() if all(free != one.number for one in live))
    files = RankFiles(wire, ddp.module, inner, name=f"thinwire-{number}" if number else "thinwire")
    mine = Checkpoint(files, number, on_resize)
    live.append(mine)
    accelerator.register_for_checkpointing(mine)
    hooks = [
        accelerator.register_save_state_pre_hook(mine.save),
        accelerator.register_load_state_pre_hook(mine.find),
    ]
    wire._hold(_Registered(accelerator, mine, hooks))
    return wire


_live: weakref.WeakKeyDictionary[Accelerator, list[Checkpoint]] = weakref.WeakKeyDictionary()


@final
class _Registered:
    """Takes a wire that detaches out of what the accelerator saves, so that another can take its place."""

    def __init__(self, accelerator: Accelerator, mine: Checkpoint, hooks: Sequence[Removable]) -> None:
        self._accelerator, self._mine, self._hooks = weakref.ref(accelerator), mine, hooks

    def remove(self) -> None:
        """Undo what `attach` registered; Accelerate has no call for it."""
        for hook in self._hooks:
            hook.remove()
        accelerator = self._accelerator()
        if accelerator is not None:
            _live[accelerator].remove(self._mine)
            kept = accelerator._custom_objects
            kept[:] = [one for one in kept if one is not self._mine]


@final
class Checkpoint:
    """What the accelerator saves and loads of one wire.

    It asks on every rank before it saves, and hands back what it registered on every rank after it has loaded models
    and optimizers. What it keeps of this object itself says only that there are files.
    """

    def __init__(self, files: RankFiles, number: int, on_resize: OnResize) -> None:
        self.number, self._files, self._on_resize = number, files, on_resize
        self._folder: str | os.PathLike[str] = ""

    def save(self, models: Any, weights: Any, folder: str | os.PathLike[str]) -> None:
        """Write this rank's file."""
        self._files.save(folder)

    def find(self, models: Any, folder: str | os.PathLike[str]) -> None:
        """Look whether there are files, before the accelerator looks for what it registered."""
        agreed(lambda: self._check(folder))
        self._folder = folder

    def state_dict(self) -> dict[str, Any]:
        """What the main process writes."""
        return {"method": self._files.wire.method.id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Everything else has been loaded."""
        self._files.load(self._folder, self._on_resize)

    def _check(self, folder: str | os.PathLike[str]) -> None:
        if not self._files.any_in(folder):
            raise ValueError(
                f"{folder} was saved without thinwire; write accelerator.load_state(...) before thinwire's "
                "attach(accelerator, ...), and memories start anew"
            )
