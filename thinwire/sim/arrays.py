"""Arrays: the types of numbers by rank, and of the ranks that are meant."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Index: TypeAlias = "np.ndarray[Any, np.dtype[np.intp]]"
