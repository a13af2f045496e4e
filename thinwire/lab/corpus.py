"""A corpus that every Python brings: the sources of its standard library, without tests, byte by byte.

Files are taken in the order of their names and cut into blocks of 16 KiB, of which every twentieth is for validation.
How much there is depends on the version of Python, which every record holds: about 11 million bytes.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

SYMBOLS = 256
BLOCK = 16 << 10
HELD_OUT = 20  # one block of so many is for validation
FEWEST = 1 << 20  # bytes
LEFT_OUT = ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__")


class Corpus(NamedTuple):
    """Bytes to train on and to validate with, int64."""

    train: Tensor
    held_out: Tensor


def load(folder: Path | None = None) -> Corpus:
    """The corpus of this Python, or of the sources in `folder`."""
    where = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    files = sorted(
        path for path in where.rglob("*.py") if not set(path.relative_to(where).parts[:-1]) & set(LEFT_OUT)
    )
    data = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files) or b"\0"), dtype=torch.uint8)
    if len(data) < FEWEST:
        raise ValueError(
            f"{where} holds {len(data):,} bytes of Python sources, fewer than {FEWEST:,}; "
            "write --data with the folder of a standard library"
        )
    blocks = data[: len(data) // BLOCK * BLOCK].view(-1, BLOCK)
    held = torch.arange(len(blocks)) % HELD_OUT == HELD_OUT - 1
    return Corpus(blocks[~held].flatten().long(), blocks[held].flatten().long())


def windows(text: Tensor, count: int, length: int, seed: int) -> Tensor:
    """Windows (count, length + 1) that begin anywhere, drawn by the seed."""
    begins = torch.randint(len(text) - length, (count, 1), generator=torch.Generator().manual_seed(seed))
    return text[begins + torch.arange(length + 1)]
