"""ProximalSGD: gradient descent on a loss plus a regulariser that has no gradient.

To minimise f(x) + R(x), with R(x) = l1 |x|_1 + (l2 / 2) |x|^2, and g a gradient of f alone:

    v = momentum v + g,    s = lr / (1 - momentum)
    x = prox_{s R}(x - lr v),    prox_{s R}(z) = sign(z) max(|z| - s l1, 0) / (1 + s l2)

With l1 > 0 elements become exactly zero. All ranks have the same x and the same mean gradient, and so take the same
step: nothing about R is sent. A server that takes the optimizer's step takes this one.

With methods.diana() it is DIANA with a regulariser: where f is strongly convex and gradients are full, x converges
to the minimum of f + R at a linear rate, though what is sent is quantised.

Reference: Mishchenko, Gorbunov, Takac, Richtarik, "Distributed learning with compressed gradient differences", 2019,
arXiv 1901.09269, algorithm 1, lines 11 and 12. Beck and Teboulle, "A fast iterative shrinkage-thresholding algorithm
for linear inverse problems", SIAM J. Imaging Sciences 2(1), 2009, for the soft threshold.

Departs from the paper: it has prox_{lr R} with momentum, too, and analyses momentum without R. As v tends to
g / (1 - momentum), that would minimise f + (1 - momentum) R.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch.optim.optimizer import ParamsT

from thinwire.optim.dense import Dense
from thinwire.server.prox import soft


@final
class ProximalSGD(Dense):
    """SGD whose step ends with the proximal map of an L1 and an L2 term.

    >>> x = torch.nn.Parameter(torch.tensor([1.0, 0.05]))
    >>> x.grad = torch.zeros(2)
    >>> ProximalSGD([x], lr=0.1, l1=1.0).step()
    >>> x.data
    tensor([0.9000, 0.0000])
    """

    def __init__(
        self, params: ParamsT, lr: float = 1e-2, momentum: float = 0.0, *, l1: float = 0.0, l2: float = 0.0
    ) -> None:
        if lr < 0 or l1 < 0 or l2 < 0:
            raise ValueError(f"ProximalSGD(lr={lr}, l1={l1}, l2={l2}): write numbers that are not negative")
        if not 0 <= momentum < 1:
            raise ValueError(f"ProximalSGD(momentum={momentum}): write 0 <= momentum < 1, such as momentum=0.9")
        super().__init__(params, {"lr": lr, "momentum": momentum, "l1": l1, "l2": l2})

    def update(self, x: torch.Tensor, g: torch.Tensor, group: dict[str, Any]) -> None:
        """Take the step of one tensor."""
        if group["momentum"]:
            state = self.state[x]
            v = state.setdefault("momentum_buffer", torch.zeros_like(x))
            g = v.mul_(group["momentum"]).add_(g)
        x.sub_(g, alpha=group["lr"])
        s = group["lr"] / (1 - group["momentum"])
        if group["l1"]:
            x.copy_(soft(x, s * group["l1"]))
        if group["l2"]:
            x.div_(1 + s * group["l2"])
