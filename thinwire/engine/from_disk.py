"""Reading a torch.distributed.checkpoint on one rank alone, which the others need not know of."""

from __future__ import annotations

import inspect
import warnings
from typing import Any


def metadata_of(path: str) -> Any:
    """What the checkpoint says about itself; ValueError if there is none."""
    from torch.distributed import checkpoint as dcp  # noqa: PLC0415  (large, and rarely needed)

    try:
        return dcp.FileSystemReader(path).read_metadata()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(
            f"{path} holds no torch.distributed.checkpoint; write the checkpoint_id that dcp.save was given"
        ) from error


def fill(flat: dict[str, Any], path: str) -> None:
    """Fill `flat`, in place, with what the checkpoint holds under its keys.

    torch 2.6 knows of reading alone only in the function that `dcp.load` has taken the place of.
    """
    from torch.distributed import checkpoint as dcp  # noqa: PLC0415  (large, and rarely needed)

    if "no_dist" in inspect.signature(dcp.load).parameters:
        dcp.load(flat, checkpoint_id=path, no_dist=True)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is on its way out, in versions that have the other
        dcp.load_state_dict(flat, dcp.FileSystemReader(path), no_dist=True)
