"""Downlink: how a model reaches one worker, at either end. The whole of it, or the elements that have changed.

Where a rule leaves most of the model as it was, only what differs from the last answer is sent, with its keys; the
worker has the same bits as if all had been sent. A message that would not be shorter is sent whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from thinwire.server.keys import KeyLists

if TYPE_CHECKING:
    from torch import Tensor

WHOLE, CHANGES = 1, 2  # what follows; 0 is nothing


@final
class Downlink:
    """`x` is the common model; each end keeps what the worker was sent last, where `changes` are sent."""

    def __init__(self, x: Tensor, *, changes: bool, cached: bool = True) -> None:
        self._has = x.detach().cpu().clone() if changes else None
        self._lists = KeyLists(cached=cached)

    def pack(self, model: Tensor) -> tuple[int, Tensor]:
        """What follows, and its bytes."""
        model = model.cpu()
        if self._has is None:
            return WHOLE, model.view(torch.uint8)
        keys = (model != self._has).nonzero().flatten()
        self._has = model.clone()
        if 8 * len(keys) >= 4 * model.numel():
            return WHOLE, model.view(torch.uint8)
        head = self._lists.write(keys, 1, None)
        return CHANGES, torch.cat((head, model[keys].view(torch.uint8)))

    def unpack(self, what: int, data: Tensor) -> Tensor:
        """The model again."""
        if what == WHOLE:
            model = data.clone().view(torch.float32)
        else:
            assert self._has is not None
            keys, _, values = self._lists.read(data, None)
            model = self._has.clone()
            model[keys] = values.clone().view(torch.float32)
        if self._has is not None:
            self._has = model.cpu().clone()
        return model
