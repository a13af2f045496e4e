"""Lightning: one callback.

    thin = tw.integrations.lightning.Thinwire(tw.methods.qsgd(bits=4))
    Trainer(strategy="ddp", callbacks=[thin]).fit(model, loader)

A method that exchanges gradients becomes the hook of DDP, whatever the device: Lightning itself registers hooks on
CUDA alone. A method that exchanges models (local steps, an outer loop, gossip) takes DDP's place: the strategy goes
on with the bare module, and thinwire is attached to it.

Rank 0 writes checkpoints, but residuals are each rank's own: every rank writes a file beside the checkpoint
(`_beside.py`), and `fit(ckpt_path=...)` reads it.
"""

from __future__ import annotations

import gc
import logging
import uuid
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast, final

import torch.distributed as dist

from thinwire.core.method import Method
from thinwire.engine.attach import attach
from thinwire.engine.checkpoint import OnResize
from thinwire.engine.ddp import ddp_hook
from thinwire.engine.misuse import check_method_type, tuple_of
from thinwire.engine.settings import Settings
from thinwire.engine.skipping import OnNonfinite, check_policy
from thinwire.engine.wire import Wire
from thinwire.integrations._agree import agreed, check_even
from thinwire.integrations._require import require
from thinwire.integrations._under_ddp import check_carried, mean_of_models

require("lightning", (2, 5))

from lightning.pytorch import Callback  # noqa: E402  (what is missing is said above)
from lightning.pytorch.core.optimizer import LightningOptimizer  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy  # noqa: E402

from thinwire.integrations import _beside  # noqa: E402  (fsspec comes with Lightning)

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import Strategy
    from torch.optim import Optimizer

log = logging.getLogger("thinwire")


@final
class Thinwire(Callback):
    """Exchanges gradients or models with `method` while a `Trainer(strategy="ddp")` fits; see `thinwire.attach`.

    `wire` is what `attach` returns, from `on_fit_start` to the end of `fit`. A checkpoint whose files per rank are
    missing is refused, unless `strict` is False: memories then start anew. On another number of ranks `on_resize`
    says what becomes of residuals, as in `Wire.load_state_dict`.
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
        strict: bool = True,
    ) -> None:
        check_method_type(method, "Thinwire({})")
        check_policy(on_nonfinite)
        check_carried(method, "Lightning")
        self.method, self._on_resize, self._strict = method, on_resize, strict
        self._settings: dict[str, Any] = {
            "min_size": min_size,
            "exclude": tuple_of(exclude),
            "seed": seed,
            "timeout": timeout,
            "on_nonfinite": on_nonfinite,
        }
        Settings(**self._settings)  # it refuses here what attach would refuse when training starts
        self._wire: Wire | None = None
        self._guarded: Strategy | None = None  # whose checkpoints have our files beside them
        self._run, self._saved = "", 0  # a name for this fit, and how many checkpoints it has saved
        self._last: dict[str, Any] = {}  # what the last fit left to save
        self._found: dict[str, Any] = {}  # of the checkpoint that is resumed

    @property
    def wire(self) -> Wire:
        """The handle: `stats()`, `plan()`, `switch(method)`, `anchor()`, `consensus()`."""
        if self._wire is None:
            raise ValueError("there is no wire before on_fit_start and after fit; read thin.wire inside a hook")
        return self._wire

    # From the start of `fit` to its end.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot be carried, before Lightning wraps the model."""
        if stage != "fit":
            return
        self._found = {}
        if isinstance(trainer.strategy, SingleDeviceStrategy):
            warnings.warn("Trainer runs one process, so that Thinwire has nothing to exchange", stacklevel=2)
        else:
            _check_strategy(trainer.strategy)
            self._guard(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take DDP's gradients, or its place."""
        if isinstance(trainer.strategy, SingleDeviceStrategy):
            return
        self._last = {}
        self._run, self._saved = trainer.strategy.broadcast(uuid.uuid4().hex), 0
        optimizer = _optimizer(trainer, self.method)
        if self.method.sync.of.models:
            assert optimizer is not None
            trainer.strategy.model = pl_module
            gc.collect()  # DDP goes now, and with it its hooks and its buckets
            self._wire = attach(pl_module, optimizer, self.method, **self._settings)
        else:
            ddp = trainer.strategy.model
            wire, hook = ddp_hook(self.method, ddp, optimizer, **self._settings)
            ddp.register_comm_hook(wire, hook)
            self._wire = wire

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load what this rank wrote beside the checkpoint, when everything else has been restored.

        Uneven epochs are refused before the first batch: Lightning broadcasts in each whether somebody is to stop.
        """
        if self._wire is None:
            return
        write = "Trainer(limit_train_batches=...) with a number that every rank has"
        check_even(float(trainer.num_training_batches), "Lightning", write)
        if not trainer.ckpt_path:
            return
        if not self._found:
            log.warning("%s was saved without thinwire; memories start anew", trainer.ckpt_path)
            return
        path, found, ranks = trainer.ckpt_path, self._found, self._found["ranks"]
        resized = ranks != trainer.world_size
        some = range(ranks) if resized and self._on_resize == "mean" else [trainer.global_rank % ranks]
        try:
            states = agreed(lambda: [_beside.load(path, rank, found["token"]) for rank in some])
        except ValueError as error:
            if self._strict:
                raise ValueError(
                    f"{error}, or write Thinwire(method, strict=False) to start without memories"
                ) from error
            log.warning("%s; memories start anew", error)
            return
        self._wire.load_state_dict([state["wire"] for state in states], on_resize=self._on_resize)
        if not resized and "optimizers" in states[0]:
            _load_own(trainer, pl_module, states[0])

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        """Tell the loss to methods whose period follows it."""
        if self._wire is not None and self.method.sync.of.models:
            self._wire.report_loss(loss.detach() * trainer.accumulate_grad_batches)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Tell the other ranks why this one stops."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Detach; where models differ, all take their mean. What `trainer.save_checkpoint` may ask for is kept."""
        if stage == "fit" and self._wire is not None:
            self._last = self._own(trainer)
            wire, self._wire = self._wire, None
            mean_of_models(wire)
            wire.detach()

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """What the checkpoint of rank 0 says about the files of all ranks; Lightning calls it on every rank."""
        if self._wire is None and not self._last:
            return {}
        self._saved += 1
        return {"method": self.method.id, "ranks": dist.get_world_size(), "token": f"{self._run} {self._saved}"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember which files go with the checkpoint; they are read when training starts."""
        self._found = state_dict

    def _guard(self, trainer: Trainer) -> None:
        """Stand before the strategy's methods that save and remove checkpoints, which every rank calls.

        No hook of a callback is told where a checkpoint goes.
        """
        strategy: Any = trainer.strategy
        if self._guarded is strategy:
            return
        self._guarded = strategy
        save, remove = strategy.save_checkpoint, strategy.remove_checkpoint

        def save_checkpoint(checkpoint: dict[str, Any], filepath: Any, *args: Any, **kwargs: Any) -> None:
            about = checkpoint.get("callbacks", {}).get(self.state_key)
            if about:  # weights alone have no memories beside them
                own = self._last or self._own(trainer)
                agreed(lambda: _beside.save(filepath, trainer.global_rank, {"token": about["token"], **own}))
            save(checkpoint, filepath, *args, **kwargs)

        def remove_checkpoint(filepath: Any) -> None:
            remove(filepath)
            _beside.remove(filepath, trainer.global_rank)

        strategy.save_checkpoint, strategy.remove_checkpoint = save_checkpoint, remove_checkpoint

    def _own(self, trainer: Trainer) -> dict[str, Any]:
        """What this rank alone has. Where models are exchanged, moments and buffers are its own, too."""
        own: dict[str, Any] = {"wire": self.wire.state_dict()}
        if self.method.sync.of.models:
            own["optimizers"] = [trainer.strategy.optimizer_state(one) for one in trainer.optimizers]
            own["precision"] = trainer.precision_plugin.state_dict()
            own["buffers"] = {name: value.clone() for name, value in trainer.lightning_module.named_buffers()}
        return own


def _load_own(trainer: Trainer, pl_module: LightningModule, state: dict[str, Any]) -> None:
    trainer.strategy.load_optimizer_state_dict({"optimizer_states": state["optimizers"]})
    trainer.precision_plugin.load_state_dict(state["precision"])
    for name, value in pl_module.named_buffers():
        value.copy_(state["buffers"][name])


def _check_strategy(strategy: Any) -> None:
    """Refuse strategies other than DDP, and one that has a hook."""
    if not isinstance(strategy, DDPStrategy):
        raise ValueError(
            f"Thinwire exchanges models that every rank holds whole, and {type(strategy).__name__} is not known to "
            'hold them so; write Trainer(strategy="ddp", callbacks=[Thinwire(method)])'
        )
    if strategy._ddp_comm_hook is not None:
        raise ValueError(
            "DDPStrategy has a ddp_comm_hook, and DDP takes one hook; write "
            'Trainer(strategy="ddp", callbacks=[Thinwire(method)])'
        )


def _optimizer(trainer: Trainer, method: Method) -> Optimizer | None:
    """The optimizer whose steps are heard; None if there are several, which only an exchange of gradients allows."""
    found = trainer.optimizers
    if len(found) == 1:
        return cast("Optimizer", found[0].optimizer if isinstance(found[0], LightningOptimizer) else found[0])
    if method.sync.of.models:
        raise ValueError(
            f"{method.id} follows the steps of one optimizer, and configure_optimizers returns {len(found)}; "
            "write return tw.optim.Joined(first, second)"
        )
    log.warning("with %d optimizers residuals do not follow learning rates, and NaN is not left out", len(found))
    return None
