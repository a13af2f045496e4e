"""Inside: what compresses the reduce-scatter of every unit of an FSDP2 model, and takes itself out again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from thinwire.engine import inside_state
from thinwire.engine.checkpoint import OnResize, Saved
from thinwire.engine.handshake import handshake
from thinwire.engine.reduce_scatter import Drivers, UnitReduceScatter
from thinwire.engine.units import Unit, units
from thinwire.exchange.inside_plan import InsidePlan, UnitPlan
from thinwire.exchange.reduce_scatter import ReduceScatter, check_reduce_scatter


@final
class Inside:
    """Compresses from here on what FSDP's shard groups send each other in backward, and keeps the residuals.

    Every rank makes one with the same arguments, after `fully_shard` and before the first backward pass. With the
    optimizer, a payload that was damaged is noticed before a step uses it, on a GPU too; without it, on a GPU, in the
    next step.
    """

    def __init__(
        self, model: nn.Module, how: ReduceScatter, optimizer: Optimizer | None = None, *, seed: int = 0
    ) -> None:
        check_reduce_scatter(how)
        self.how, self.seed = how, seed
        self._drivers = Drivers()
        found = units(model)
        for unit in found:
            if isinstance(unit.comm, UnitReduceScatter):
                raise ValueError(
                    "the reduce-scatter of this model is compressed already; write detach() of the first handle first"
                )
        self._meet(found)
        self.calls = [UnitReduceScatter(unit, at, how, seed, self._drivers) for at, unit in enumerate(found)]
        self._before = [unit.comm for unit in found]
        for unit, call in zip(found, self.calls, strict=True):
            unit.module.set_custom_reduce_scatter(call)
        self._hook = None if optimizer is None else optimizer.register_step_pre_hook(lambda *_: self.check())
        self._attached = True

    def check(self) -> None:
        """Raise PayloadError if a payload was damaged in a backward pass; waits for a GPU."""
        for call in self.calls:
            call.verdicts.raise_if_sent()

    def stats(self) -> dict[str, float]:
        """What this rank has sent inside its shard groups, and the seconds that it took."""
        sent = sum(t.bytes for t in self._drivers.traffic)
        elements = sum(call.elements for call in self.calls)
        seconds = {
            f"inside_{what}_s": sum(call.seconds[what] for call in self.calls)
            for what in ("encode", "wire", "decode")
        }
        return {
            "inside_rounds": max(call.round for call in self.calls),
            "inside_bytes_sent": sent,
            "inside_messages": sum(t.messages for t in self._drivers.traffic),
            "inside_elements": elements,
            "inside_bits_per_element": 8 * sent / max(1, elements),
            "inside_residual_bytes": sum(call.kept.nbytes for call in self.calls if call.kept is not None),
            **seconds,
        }

    def plan(self) -> InsidePlan:
        """What every unit sends, and the memory that each kind of residual costs; it prints as a table."""
        rows = [
            UnitPlan(call.unit.name, tuple(call.unit.rows().values()), dist.get_world_size(call.unit.process_group))
            for call in self.calls
        ]
        return InsidePlan(self.how, tuple(rows))

    def state_dict(self) -> dict[str, Any]:
        """The residuals of this rank by parameter, for torch.save (one file per rank) or distributed.checkpoint."""
        return inside_state.collect(self.how, self.seed, self.calls)

    def load_state_dict(self, state: Saved, *, on_resize: OnResize = "mean") -> None:
        """Go on where `state_dict` was taken.

        On another number of ranks, pass the states of all ranks as a list: residuals are then shared out so that
        their mean over ranks stays what it was ("mean"), start anew ("reset"), or are refused ("error").
        """
        self.take(inside_state.checked(self.how, self.calls, state, on_resize=on_resize))

    def take(self, residuals: inside_state.Checked) -> None:
        """Go on with residuals that were looked at."""
        with torch.no_grad():
            self.seed = inside_state.restore(self.calls, residuals)
        for call in self.calls:
            call.seed = self.seed

    def detach(self) -> None:
        """Give FSDP back the reduce-scatter that it had."""
        if not self._attached:
            return
        self._attached = False
        for call, before in zip(self.calls, self._before, strict=True):
            call.leave()
            call.unit.module.set_custom_reduce_scatter(before)
        if self._hook is not None:
            self._hook.remove()

    def remove(self) -> None:
        """The same, for a wire that holds it."""
        self.detach()

    def __enter__(self) -> Inside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _meet(self, found: Sequence[Unit]) -> None:
        """Compare with the other ranks of every shard group what is about to be done."""
        fields = {
            "inside": self.how.to_json(),
            "seed": str(self.seed),
            "units": str([(unit.name, unit.rows()) for unit in found]),
        }
        for group in dict.fromkeys(unit.process_group for unit in found):
            driver = self._drivers.of(group)
            wrong = driver.run(handshake(driver.comm, fields, partial(dist.get_global_rank, group)))
            driver.traffic.bytes = driver.traffic.messages = 0
            if wrong:
                raise ValueError(wrong)


def split(inside: Inside | None, saved: Saved, *, on_resize: OnResize) -> tuple[Saved, inside_state.Checked | None]:
    """What a wire has saved besides its shard groups; and of these, what `inside` would take up."""
    if not isinstance(saved, Mapping | Sequence):
        raise ValueError(
            f"{type(saved).__name__} is not a state of thinwire: write wire.load_state_dict(s) with what "
            "wire.state_dict() returned"
        )
    several = [saved] if isinstance(saved, Mapping) else list(saved)
    found = [one["inside"] for one in several if isinstance(one, Mapping) and "inside" in one]
    if inside is None and found:
        how = ReduceScatter.from_json(json.loads(next(iter(found[0].values()))["about"])["inside"])
        raise ValueError(f"the state was saved with a compressed reduce-scatter; write tw.fsdp(..., inside={how!r})")
    if inside is None or (not found and inside.how.residual == "none"):
        return saved, None
    if not found:
        raise ValueError(
            "the state was saved without a compressed reduce-scatter; leave `inside` out, and load again"
        )
    residuals = inside_state.checked(
        inside.how, inside.calls, found[0] if len(found) == 1 else found, on_resize=on_resize
    )
    rest = [{key: value for key, value in one.items() if key != "inside"} for one in several]
    return (rest[0] if isinstance(saved, Mapping) else [one for one in rest if one]), residuals
