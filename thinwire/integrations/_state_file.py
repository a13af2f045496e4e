"""Reading what a rank has written for itself: all of it, or one sentence."""

from __future__ import annotations

import os
import pickle
from typing import IO, Any

import torch


def read_state(file: str | os.PathLike[str] | IO[bytes], name: object, *keys: str) -> dict[str, Any]:
    """The mapping in `file`, on the CPU; ValueError if it cannot be read or lacks one of `keys`."""
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        _ = [state[key] for key in keys]
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"{name} is damaged ({type(error).__name__}); resume from another checkpoint") from error
    return state
