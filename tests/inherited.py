"""What the ranks of tests have imported when they start: the server that forks them imports this file once.

The server knows the folder in which pytest was started, but not the paths that pytest adds.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import nets
import pytest
import ranks
import torch.distributed.checkpoint

__all__ = ["nets", "pytest", "ranks", "torch"]
