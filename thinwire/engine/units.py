"""Units of FSDP2: the modules that `fully_shard` wraps. Each reduces the gradients of its parameters together.

torch hands a reduce-scatter one flat buffer and does not say which parameters are in it: those without a gradient are
left out. Whoever keeps something by parameter must know, so a unit looks at the same moment, and by the same rule, at
what FSDP looks at: when its `post_backward` begins. These names are private to torch. They are listed in `PRIVATE`,
looked up before anything is changed, and what is found is compared with the size of every buffer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor, nn

from thinwire.engine.sharding import param_groups

if TYPE_CHECKING:
    import torch.distributed as dist

FOLDER = "torch/distributed/fsdp/_fully_shard"
PRIVATE = {
    "_fsdp_param_group.py": ("fsdp_params", "post_backward", "_reduce_scatter_comm", "_reduce_scatter_process_group"),
    "_fsdp_param.py": (
        *("sharded_param", "padded_sharded_param_size", "unsharded_accumulated_grad", "fsdp_placement", "_orig_size"),
    ),
}
"""What is used of FSDPParamGroup and of FSDPParam, by the file to look at when a torch release has changed it."""


class Cut(NamedTuple):
    """A tensor of this `shape` is cut along `dim` into chunks, all padded to one shape; a row has one of them."""

    shape: tuple[int, ...]
    dim: int
    chunk: tuple[int, ...]

    def joined(self, rows: Sequence[Tensor]) -> Tensor:
        """The tensor of these rows."""
        return torch.cat([row.view(self.chunk) for row in rows], self.dim).narrow(self.dim, 0, self.shape[self.dim])

    def rows(self, whole: Tensor, ranks: int) -> list[Tensor]:
        """The inverse, with zeros where a row is padded."""
        full = list(self.shape)
        full[self.dim] = ranks * self.chunk[self.dim]
        padded = whole.new_zeros(full)
        padded.narrow(self.dim, 0, self.shape[self.dim]).copy_(whole)
        return [chunk.flatten() for chunk in padded.chunk(ranks, self.dim)]


@final
class Unit:
    """One group of parameters that FSDP reduces together; `names` are those of the model."""

    def __init__(self, name: str, module: Any, group: Any, names: dict[int, str]) -> None:
        self.name, self.module = name, module
        self._group = group
        self._names = {id(p): names[id(p.sharded_param)] for p in group.fsdp_params}
        self._with_gradient: list[Any] = []  # when FSDP last looked
        self._watched = False

    @property
    def process_group(self) -> dist.ProcessGroup:
        """The ranks over which gradients are scattered."""
        found: dist.ProcessGroup = self._group._reduce_scatter_process_group
        return found

    @property
    def device(self) -> torch.device:
        """Where gradients are computed."""
        found: torch.device = self._group.device
        return found

    @property
    def comm(self) -> Any:
        """What reduces and scatters."""
        return self._group._reduce_scatter_comm

    def rows(self) -> dict[str, int]:
        """The padded elements per owner of every parameter that is trained, in the order of the buffer."""
        return {self._names[id(p)]: _row(p) for p in self._group.fsdp_params if p.sharded_param.requires_grad}

    def cuts(self) -> dict[str, Cut]:
        """How every parameter is cut into rows."""
        return {
            self._names[id(p)]: Cut(tuple(p._orig_size), p.fsdp_placement.dim, tuple(p.padded_sharded_param_size))
            for p in self._group.fsdp_params
        }

    def handed_over(self, row: int) -> dict[str, int]:
        """The same of those that are in the buffer that FSDP hands over now, which has `row` elements per owner."""
        found = {self._names[id(p)]: _row(p) for p in self._with_gradient}
        if sum(found.values()) != row:
            raise RuntimeError(
                f"FSDP handed over {row} elements per rank where the parameters with a gradient have "
                f"{sum(found.values())}: torch {torch.__version__} chooses them in another way than thinwire does; "
                f"look at FSDPParamGroup.post_backward in {FOLDER}, or write residual='none'"
            )
        return found

    def watch(self) -> None:
        """Note from here on which parameters have a gradient, whenever FSDP is about to look."""
        original = self._group.post_backward

        def post_backward(*unused: Any) -> Any:
            self._with_gradient = [p for p in self._group.fsdp_params if _has_gradient(p, self._group)]
            return original(*unused)

        self._group.post_backward = post_backward
        self._watched = True

    def leave(self) -> None:
        """Stop watching."""
        if self._watched:
            del self._group.post_backward  # the class has its own
            self._watched = False


def units(model: nn.Module) -> list[Unit]:
    """The units of a model in the order of its modules; ValueError if it has none, or more than one per module."""
    kind = _kind()
    found: list[Unit] = []
    names = {id(p): name for name, p in model.named_parameters()}
    for name, module in model.named_modules():
        if not isinstance(module, kind):
            continue
        groups = param_groups(module)
        if len(groups) > 1:
            raise ValueError(
                f"the parameters of {name or 'the model'} are sharded over several meshes, and torch takes no "
                "reduce-scatter of one's own there; write fully_shard(module, mesh=mesh) with one mesh per module"
            )
        for group in groups:
            _check(group)
            found.append(Unit(name, module, group, names))
    if not found:
        raise ValueError(
            f"{type(model).__name__} is not sharded; write torch.distributed.fsdp.fully_shard(model) before it"
        )
    return found


def _kind() -> type:
    """FSDPModule of a torch that takes a reduce-scatter of one's own."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415  (large, and rarely needed)

    for setter in ("set_custom_reduce_scatter", "_get_fsdp_state"):
        if not hasattr(FSDPModule, setter):
            raise RuntimeError(
                f"a compressed reduce-scatter needs FSDPModule.{setter}, which torch 2.9 has and torch "
                f"{torch.__version__} has not; install a newer torch, or leave `inside` out"
            )
    return FSDPModule


def _check(group: Any) -> None:
    """Say what torch has changed, rather than fail somewhere in a backward pass."""
    for file, names in PRIVATE.items():
        for one in [group] if file == "_fsdp_param_group.py" else group.fsdp_params[:1]:
            for name in names:
                if not hasattr(one, name):
                    raise RuntimeError(
                        f"{type(one).__name__} of torch {torch.__version__} has no '{name}', which a compressed "
                        f"reduce-scatter needs; look at {FOLDER}/{file}, and at thinwire/engine/units.py"
                    )


def _row(p: Any) -> int:
    return math.prod(p.padded_sharded_param_size)


def _has_gradient(p: Any, group: Any) -> bool:
    """Whether FSDP is about to put it into the buffer."""
    if not hasattr(p, "_unsharded_param"):  # it was never used
        return False
    if p.unsharded_accumulated_grad is not None or p.unsharded_param.grad is not None:
        return True
    return bool(getattr(group, "reduce_scatter_unused_params", False) and p.unsharded_param.requires_grad)
