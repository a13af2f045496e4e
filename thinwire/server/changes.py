"""Changes: answers of which only the elements are sent that differ from the last one, at either end.

Where a rule leaves most of the model as it was, what has changed is sent with its keys; the worker has the same bits
as if all had been sent. What would not be shorter is sent whole, which its length tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from thinwire.server.keys import HEAD, KeyLists

if TYPE_CHECKING:
    from torch import Tensor


@final
class Changes:
    """One end of the way to one worker; both keep what was sent last."""

    def __init__(self, n: int, *, cached: bool = True) -> None:
        self._n, self._cached = n, cached
        self.forget()

    def forget(self) -> None:
        """The next message is whole, and lists of keys are sent anew; both ends must do so."""
        self._has: Tensor | None = None
        self._lists = KeyLists(cached=self._cached)

    def pack(self, model: Tensor) -> Tensor:
        """The bytes that bring a worker to this model."""
        model, last = model.detach().cpu().clone(), self._has
        self._has = model
        if last is None:
            return model.view(torch.uint8)
        keys = (model.view(torch.int32) != last.view(torch.int32)).nonzero().flatten()  # -0 is not 0
        if HEAD.size + -(-4 * len(keys) // 16) * 16 + 4 * len(keys) >= 4 * self._n:
            return model.view(torch.uint8)
        return torch.cat((self._lists.write(keys, 1, None), model[keys].view(torch.uint8)))

    def unpack(self, data: Tensor) -> Tensor:
        """The model again."""
        if data.numel() == 4 * self._n:
            self._has = data.cpu().clone().view(torch.float32)
        else:
            assert self._has is not None
            keys, _, values = self._lists.read(data.cpu(), None)
            self._has = self._has.clone()
            self._has[keys] = values.clone().view(torch.float32)
        return self._has.clone()
