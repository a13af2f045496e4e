"""OneBitAdam: Adam whose second moment stops changing, the optimizer that 1-bit Adam needs.

With gradient g at step t = 1, 2, ..., and f = `freeze`:

    x = x - lr weight_decay x
    m = b1 m + (1 - b1) g
    v = b2 v + (1 - b2) g^2                                          while t <= f
    v = max(v, floor^2 max(v)), the largest of the tensor            when t = f
    x = x - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^min(t, f))) + eps)

For the first f steps this is torch.optim.AdamW. After them v is a fixed scaling of each element, so that the step is
linear in m, and m can be compressed with error feedback. Use it with methods.one_bit_adam(warmup=f): f must be the
method's warm-up, since v must only ever see gradients that were not compressed.

State names are those of torch.optim.Adam: step, exp_avg (m), exp_avg_sq (v).

Reference: Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's convergence speed",
ICML 2021, arXiv 2102.02888, algorithm 1.

Departs from the paper: the algorithm has no bias corrections and no weight decay. Here m is corrected as in Adam, v's
correction is frozen with v, and weight decay is decoupled as in AdamW. The floor is ours: a weight whose gradient was
zero until v froze has v = 0, one bit still gives it a sign, and lr |m| / eps moved it to infinity.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch.optim.optimizer import ParamsT

from thinwire.optim.dense import Dense


@final
class OneBitAdam(Dense):
    """AdamW whose second moment is frozen after `freeze` steps.

    >>> x = torch.nn.Parameter(torch.ones(1))
    >>> optimizer = OneBitAdam([x], lr=0.1, freeze=1)
    >>> for g in (1.0, 100.0):
    ...     x.grad = torch.tensor([g])
    ...     optimizer.step()
    >>> optimizer.state[x]["exp_avg_sq"]  # from the first gradient alone
    tensor([0.0010])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        freeze: int = 100,
        floor: float = 1e-2,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0:
            raise ValueError(
                f"OneBitAdam(lr={lr}, eps={eps}, weight_decay={weight_decay}): write numbers that are not negative"
            )
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"OneBitAdam(betas={betas}): write 0 <= beta < 1, such as betas=(0.9, 0.999)")
        if freeze < 1:
            raise ValueError(
                f"OneBitAdam(freeze={freeze}) would divide by a second moment that never saw a gradient; "
                "write freeze=warmup, the method's number of uncompressed steps, 1 or more"
            )
        if not 0 <= floor <= 1:
            raise ValueError(f"OneBitAdam(floor={floor}): write a fraction of the largest root of v, 0 <= floor <= 1")
        defaults = {
            "floor": floor,
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "freeze": freeze,
        }
        super().__init__(params, defaults)

    def update(self, x: torch.Tensor, g: torch.Tensor, group: dict[str, Any]) -> None:
        """Take the step of one tensor."""
        state = self.state[x]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(x)
            state["exp_avg_sq"] = torch.zeros_like(x)
        state["step"] += 1
        t, (b1, b2) = state["step"].item(), group["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        x.mul_(1 - group["lr"] * group["weight_decay"])
        m.lerp_(g, 1 - b1)
        if t <= group["freeze"]:
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
        if t == group["freeze"] and v.numel():
            v.clamp_(min=group["floor"] ** 2 * v.max().item())
        scale = (1 - b2 ** min(t, group["freeze"])) ** 0.5
        x.addcdiv_(m, (v.sqrt() / scale).add_(group["eps"]), value=-group["lr"] / (1 - b1**t))
