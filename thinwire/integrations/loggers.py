"""What `wire.stats()` says, in TensorBoard and in Weights & Biases: one line each in a training loop.

    tw.integrations.loggers.tensorboard(wire, writer, step)       # writer = SummaryWriter(...)
    tw.integrations.loggers.wandb(wire, run, step)                # run = wandb.init(...)

Figures are those of this rank, and are called `thinwire/bytes_sent`, `thinwire/ratio` and so on. What matters for the
method is written: bytes and their ratio to DDP's; of the last steps, their time, the wait in it and the share of
communication that was hidden; whatever the method adds (`outer_rounds`, `staleness_max`); and what has happened at
all: a compression error, a distance between models, steps or uploads that were skipped. Let one rank write them, or
give each rank a writer of its own. Neither package is imported: a writer is what it can do. With Hugging
Face's Trainer nothing need be written: its callback adds the figures to whatever the Trainer reports to.
"""

from __future__ import annotations

from typing import Any, Protocol

PREFIX = "thinwire/"
WHERE_NOT_0 = frozenset(
    {"nmse", "consensus_distance", "steps_skipped", "elements_again", "uploads", "uploads_skipped"}
)
PRINTED = frozenset(
    [
        *("steps", "rounds", "elements", "messages", "skipped", "ddp_bytes", "bits_per_element"),
        *("step_bytes", "step_s", "step_wait_s", "hidden", "last_steps", "last_ratio", "last_step_bytes"),
        *("encode_s", "wire_s", "decode_s", "encode_gpu_s", "decode_gpu_s", "local_steps"),
    ]
)
"""What `wire.stats()` is asked for by those who look closer: sums that follow from the rest, and threads' times."""


class HasStats(Protocol):
    """What `attach` and the adapters return."""

    def stats(self) -> dict[str, float]:
        """Figures by name."""


class Writer(Protocol):
    """A `SummaryWriter`, of torch.utils.tensorboard or of tensorboardX."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        """Write one figure."""


class Run(Protocol):
    """What `wandb.init` returns, or the module `wandb` after it."""

    def log(self, data: dict[str, Any], step: int | None = None) -> Any:
        """Write figures."""


def figures(wire: HasStats | None) -> dict[str, float]:
    """Those of `wire.stats()` that matter, under the names that loggers show; none where one process has no wire."""
    found = {} if wire is None else wire.stats()
    return {
        PREFIX + name: value
        for name, value in found.items()
        if name not in PRINTED and (value or name not in WHERE_NOT_0)
    }


def tensorboard(wire: HasStats | None, writer: Writer, step: int) -> None:
    """Write the figures to TensorBoard."""
    if not callable(getattr(writer, "add_scalar", None)):
        raise TypeError(
            f"tensorboard takes a SummaryWriter; got {type(writer).__name__}: write "
            "tensorboard(wire, torch.utils.tensorboard.SummaryWriter(folder), step)"
        )
    for name, value in figures(wire).items():
        writer.add_scalar(name, value, step)


def wandb(wire: HasStats | None, run: Run, step: int | None = None) -> None:
    """Log the figures to Weights & Biases, as one row."""
    if not callable(getattr(run, "log", None)):
        raise TypeError(
            f"wandb takes a run; got {type(run).__name__}: write wandb(wire, run, step) with run = wandb.init(...)"
        )
    if found := figures(wire):
        run.log(found, step=step)
