"""Checksums: one for each tensor of a rank's state and one for the plain values of an entry; they find flipped bits.

A state has them in its entry "checksums", as JSON, by path: "tensors/up.send.residual|0|w" is a tensor, and "round"
stands for all in this entry that is no tensor. A state without checksums is of an earlier thinwire, and is not
checked.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

ENTRY = "checksums"
MAY_LACK = ("lr",)  # `dcp.load` reads into what a wire has, and before the first round it has none
READ = "it is damaged, or dcp.load has left it out: write wire.load_state_dict(tw.Wire.read_checkpoint(path))"


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with its checksums."""
    return {**state, ENTRY: json.dumps(_checksums(state))}


def check_checksums(who: str, state: Mapping[str, Any]) -> None:
    """ValueError if the state is not what was saved, with the entry that is missing, new or another."""
    if ENTRY not in state:
        return
    try:
        before = dict(json.loads(state[ENTRY]))
    except (TypeError, ValueError):
        raise ValueError(f"{who} has '{ENTRY}' that cannot be read; it is damaged") from None
    now = _checksums(state)
    for path in {**before, **now}:
        if path not in now and path not in MAY_LACK:
            raise ValueError(f"{who} lacks '{path}', which was saved; {READ}")
        if path not in before:
            raise ValueError(f"{who} has '{path}', which was not saved; it is damaged")
        if path in now and before[path] != now[path]:
            raise ValueError(f"{who} has '{path}' with another checksum than was saved; it is damaged")


def digest(value: Mapping[str, Any] | list[Any]) -> int:
    """One checksum for all that is in dicts and lists."""
    return zlib.crc32(json.dumps(sorted(_checksums(value).items())).encode())


def _checksums(state: Any) -> dict[str, int]:
    out: dict[str, int] = {}
    plain: dict[str, list[tuple[str, Any]]] = {}
    for path, value in _leaves(state, ""):
        if isinstance(value, Tensor):
            out[path] = _of_tensor(value)
        else:
            plain.setdefault(path.split("/")[0], []).append((path, value))
    for entry, values in plain.items():
        out[entry] = zlib.crc32(json.dumps(sorted(values, key=lambda leaf: leaf[0]), default=repr).encode())
    return out


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What is neither a dict nor a list, by path; one that is empty leaves no trace, as in a DCP checkpoint."""
    if isinstance(value, Mapping):
        parts = [(str(key), one) for key, one in value.items() if path or key != ENTRY]
    elif isinstance(value, list | tuple):
        parts = [(str(index), one) for index, one in enumerate(value)]
    else:
        yield path, value
        return
    for key, one in parts:
        yield from _leaves(one, f"{path}/{key}" if path else key)


def _of_tensor(x: Tensor) -> int:
    about = f"{x.dtype} {list(x.shape)}".encode()
    data = x.detach().reshape(-1).contiguous().cpu().view(torch.uint8)
    numbers: Any = data.numpy()
    return zlib.crc32(numbers, zlib.crc32(about))
