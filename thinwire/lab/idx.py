"""The idx files of MNIST and similar data sets: gzip, a magic number, the sizes, then bytes.

The magic number is two zero bytes, the kind of number (8: unsigned bytes) and how many dimensions follow.
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

BYTES = 0x08


def read(path: Path) -> Tensor:
    """The array of a .gz file, uint8, in the shape that it declares."""
    try:
        with gzip.open(path, "rb") as file:
            raw = file.read()
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error})") from None
    if len(raw) < 4 or raw[:3] != bytes((0, 0, BYTES)):
        raise ValueError(f"{path} is not an idx file of bytes: it starts with {raw[:4].hex()}, not with 000008")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise ValueError(f"{path} ends inside its header, after {len(raw)} bytes")
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise ValueError(f"{path} declares {shape}, {math.prod(shape)} bytes, and holds {len(raw) - start}")
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint8, offset=start).copy()).view(shape)
