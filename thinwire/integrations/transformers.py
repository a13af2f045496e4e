"""Hugging Face Trainer: one callback.

    thin = tw.integrations.transformers.Thinwire(tw.methods.qsgd(bits=4))
    Trainer(model, args, train_dataset=data, callbacks=[thin]).train()

Trainer puts the model into DDP. Gradients then travel in DDP's hook; a method that exchanges models (local steps, an
outer loop, gossip) takes DDP's place while DDP stays quiet (`_under_ddp.py`). Residuals are each rank's own: every
rank writes a file into the folder of a checkpoint (`_rank_files.py`), and `train(resume_from_checkpoint=...)` reads
it.
"""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.method import Method
from thinwire.engine.checkpoint import OnResize
from thinwire.engine.misuse import check_method_type, tuple_of
from thinwire.engine.settings import Settings
from thinwire.engine.skipping import OnNonfinite, check_policy
from thinwire.engine.wire import Wire
from thinwire.integrations._agree import check_even
from thinwire.integrations._rank_files import RankFiles
from thinwire.integrations._require import require
from thinwire.integrations._under_ddp import bare, check_carried, mean_of_models, uncompiled, wire_under
from thinwire.integrations.loggers import figures
from thinwire.sync import Delta

require("transformers", (5, 0))
require("accelerate", (1, 10), extra="transformers")

from transformers import Trainer, TrainerCallback  # noqa: E402  (what is missing is said above)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint  # noqa: E402

if TYPE_CHECKING:
    from torch import nn
    from transformers import TrainerControl, TrainerState, TrainingArguments

log = logging.getLogger("thinwire")
EVEN = 'TrainingArguments(accelerator_config={"even_batches": True}) or TrainingArguments(max_steps=...)'


@final
class Thinwire(TrainerCallback):
    """Exchanges gradients or models with `method` while a Trainer trains; see `thinwire.attach` for the arguments.

    `wire` is what `attach` returns, from the start of training to its end. Its figures go to whatever the Trainer
    reports to, as `thinwire/bytes_sent` and so on. `on_resize` is for a checkpoint of another number of ranks. At the
    end the ranks of a method that exchanges models have the mean of their models.
    """

    def __init__(
        self,
        method: Method,
        *,
        min_size: int | None = None,
        exclude: Sequence[str] = (),
        seed: int = 0,
        timeout: float = 600.0,
        on_nonfinite: OnNonfinite = "skip",
        on_resize: OnResize = "mean",
    ) -> None:
        check_method_type(method, "Thinwire({})")
        check_policy(on_nonfinite)
        check_carried(method, "Trainer")
        _check_loss(method)
        self.method, self._on_resize = method, on_resize
        self._settings = Settings(min_size, tuple_of(exclude), seed, timeout, on_nonfinite=on_nonfinite)
        self._files: RankFiles | None = None  # while training
        self._folder = ""  # of this run's checkpoints

    @property
    def wire(self) -> Wire:
        """The handle: `stats()`, `plan()`, `switch(method)`, `anchor()`, `consensus()`."""
        if self._files is None:
            raise ValueError("there is no wire before training, after it, or in one process; read it in a callback")
        return self._files.wire

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take DDP's gradients or its place, and load what this rank wrote into the checkpoint."""
        self._drop(RuntimeError("its training was stopped, and it trains anew"))
        running = _running()
        if args.world_size == 1:
            warnings.warn("Trainer runs one process, so that Thinwire has nothing to exchange", stacklevel=2)
            return
        trainer = running.trainer
        if args.max_steps <= 0:
            loader = kwargs.get("train_dataloader")
            check_even(len(loader) if isinstance(loader, Sized) else 0, "Trainer", EVEN)
        ddp, optimizer = _wrapped(trainer.model_wrapped), bare(kwargs["optimizer"])
        hook_of = "Trainer(..., callbacks=[Thinwire(method)]) and no comm_hook"
        wire = wire_under(ddp, optimizer, self.method, self._settings, hook_of=hook_of)
        self._files = RankFiles(wire, ddp.module, optimizer)
        self._folder = trainer._get_output_dir(running.trial)
        try:
            if running.resumes and not self._files.load(running.resumes, self._on_resize):
                log.warning("%s was saved without thinwire; memories start anew", running.resumes)
        except Exception as error:
            self._drop(error)
            raise
        first = trainer.callback_handler.callbacks  # those who report must see our figures
        first.remove(self)
        first.insert(0, self)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the figures of this rank to the logs of training."""
        if self._files is not None and logs is not None and "loss" in logs:
            logs.update(figures(self.wire))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write this rank's file into the checkpoint; weights alone have no memories beside them."""
        if self._files is not None and not args.save_only_model:
            self._files.save(os.path.join(self._folder, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Detach. If the Trainer has just loaded the best model, that one stays."""
        files, self._files = self._files, None
        if files is None:
            return
        best = args.load_best_model_at_end and state.best_model_checkpoint is not None
        kept = [(p, p.detach().clone()) for p in kwargs["model"].parameters()] if best else []
        if not best:
            mean_of_models(files.wire)
        files.wire.detach()
        with torch.no_grad():
            for p, value in kept:
                p.copy_(value)

    def _drop(self, error: Exception) -> None:
        """End a wire that is left, as by a training that Ctrl-C has stopped; `error` is what other ranks are told."""
        files, self._files = self._files, None
        if files is not None:
            files.wire.__exit__(type(error), error, error.__traceback__)


def _check_loss(method: Method) -> None:
    of = method.sync.of
    if isinstance(of, Delta) and of.period.hears_loss:
        raise ValueError(
            f"{method.id} follows the loss of every step, which Trainer does not tell; write "
            "tw.methods.local_sgd(every=16), or a loop of your own with wire.report_loss(loss)"
        )


class Running(NamedTuple):
    """What `Trainer.train` was called with."""

    trainer: Any
    trial: Any
    resumes: str  # the folder of a checkpoint, or nothing


def _running() -> Running:
    """The call of `Trainer.train` that is running: a callback is told neither its trainer nor what is resumed.

    The names that are read are those of the method's arguments.
    """
    code = inspect.unwrap(Trainer.train).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        raise ValueError("Thinwire was called outside of Trainer.train; write trainer.train()")
    given = frame.f_locals
    trainer, resumes = given["self"], given["resume_from_checkpoint"]
    if resumes is True:
        resumes = get_last_checkpoint(trainer.args.output_dir)
    return Running(trainer, given["trial"], os.fspath(resumes) if resumes else "")


def _wrapped(model: nn.Module) -> DistributedDataParallel:
    ddp = uncompiled(model)
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(
            f"Thinwire takes models that Trainer puts into DistributedDataParallel, and this one is "
            f"{type(ddp).__name__}; write TrainingArguments(...) without fsdp and deepspeed, and start with torchrun"
        )
    return ddp
