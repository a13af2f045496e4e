"""The text task: a small transformer reads Python's own standard library, character by character.

The corpus comes with every Python: the sources of some of its modules, joined, without characters that are not ASCII,
cut into windows of WINDOW + 1 characters that do not overlap. The first WINDOWS of them are used, every tenth for
testing. They depend on the version of Python, which every record holds.

A window (c_1, ..., c_33) asks 32 questions: from c_1 .. c_t, which is c_(t+1)? The accuracy is the share of them
that are answered correctly. 30% of the characters are spaces.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

MODULES = (
    *("argparse", "ast", "bdb", "calendar", "cmd", "codecs", "configparser", "copy", "csv", "dataclasses"),
    *("datetime", "difflib", "doctest", "enum", "fractions", "ftplib", "functools", "heapq", "inspect", "locale"),
    *("mailbox", "optparse", "pickle", "platform", "plistlib", "random", "shutil", "smtplib", "socket"),
    *("statistics", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "tokenize", "traceback", "turtle"),
    *("typing", "uuid", "warnings", "weakref"),
)
WINDOW = 32  # characters that are read at a time
WINDOWS = 40_000  # of more than 55,000
TRAINED = WINDOWS - WINDOWS // 10
SYMBOLS = 128
SMALL = 0.02  # deviation of the initial weights of places


def find(folder: Path | None) -> Path:
    """The folder of the standard library; `folder` is for those who have its sources elsewhere."""
    where = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    missing = [f"{name}.py" for name in MODULES if not (where / f"{name}.py").is_file()]
    if len(missing) > len(MODULES) // 4:
        raise FileNotFoundError(
            f"the sources of Python's standard library are not in {where} ({', '.join(missing[:3])}, ...): "
            "write --data with the folder that holds argparse.py"
        )
    return where


def load(folder: Path | None) -> tuple[Tensor, Tensor]:
    """Windows (count, WINDOW + 1) to train on and to test on, int64."""
    where = find(folder)
    files = [where / f"{name}.py" for name in MODULES]
    data = b"".join(file.read_bytes() for file in files if file.is_file())
    text = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    text = text[text < SYMBOLS]
    if len(text) < WINDOWS * (WINDOW + 1):
        raise ValueError(
            f"{where} holds {len(text):,} of the {WINDOWS * (WINDOW + 1):,} characters needed; "
            "write --data with the folder of a whole standard library"
        )
    windows = text[: WINDOWS * (WINDOW + 1)].view(WINDOWS, WINDOW + 1).long()
    tested = torch.arange(WINDOWS) % 10 == 9
    return windows[~tested], windows[tested]


@final
class Reader(nn.Module):
    """A transformer of `layers` layers; it maps (batch, WINDOW) characters to (batch, SYMBOLS, WINDOW) scores."""

    later: Tensor

    def __init__(self, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.places = nn.Parameter(torch.randn(WINDOW, width) * SMALL)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.scores = nn.Linear(width, SYMBOLS)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(WINDOW), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of every next character, with classes in dimension 1 as cross_entropy expects."""
        seen = self.layers(self.symbols(x) + self.places, mask=self.later, is_causal=True)
        scores: Tensor = self.scores(seen)
        return scores.transpose(1, 2)
