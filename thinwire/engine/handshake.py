"""Handshake: before the first step all ranks compare what they are about to do.

Each rank sends a short description, field by field. If the descriptions differ, every rank learns in which field, and
which ranks have which value. A field may have fields of its own, as the tensors of a model do: a digest is sent for
them, and the fields themselves only if the digests differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch

from thinwire.core.comm import to_bytes, to_tensor

if TYPE_CHECKING:
    from thinwire.core.comm import Comm

Fields: TypeAlias = Mapping[str, "str | Mapping[str, str]"]
Name: TypeAlias = Callable[[int], int]
LENGTH = 200  # characters of a value that are shown


async def handshake(comm: Comm, mine: Fields, name: Name = int) -> str:
    """Empty if all ranks have the same fields, else one sentence, which is the same on all ranks.

    `name` is the number by which users know a rank.
    """
    short = {field: value if isinstance(value, str) else _digest(value) for field, value in mine.items()}
    everybody = [json.loads(to_bytes(said)) for said in await comm.all_gather(to_tensor(json.dumps(short).encode()))]
    for field in dict.fromkeys(field for said in everybody for field in said):
        values = [str(said.get(field, "nothing")) for said in everybody]
        if len(set(values)) > 1:
            parts = mine.get(field)
            if isinstance(parts, Mapping):
                return f"{await handshake(comm, parts, name)}; make {field} alike on all ranks before this call"
            return f"ranks differ in {field}: {describe(values, name)}"
    return ""


def _digest(fields: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(fields), sort_keys=True).encode()).hexdigest()


async def in_common(comm: Comm, names: list[str]) -> list[str]:
    """The names that every rank has, in one order."""
    said = await comm.all_gather(to_tensor(json.dumps(names).encode()))
    return sorted(set.intersection(*(set(json.loads(to_bytes(one))) for one in said)))


async def differing(comm: Comm, mine: int, name: Name = int) -> str:
    """Empty if all ranks give the same number of 63 bits, else which ranks have which."""
    most, least = (await comm.all_reduce(torch.tensor([mine, -mine]), "max")).tolist()
    if most == -least:
        return ""
    everybody = await comm.all_gather(to_tensor(mine.to_bytes(8, "little")))
    return describe([to_bytes(said)[::-1].hex() for said in everybody], name)


async def exchanged(comm: Comm, mine: str) -> list[str]:
    """What every rank says, by rank."""
    return [to_bytes(word).decode() for word in await comm.all_gather(to_tensor(mine.encode()))]


def describe(values: list[str], name: Name = int) -> str:
    """Say who has what; long texts are shown from shortly before the place where they differ.

    >>> describe(["qsgd", "qsgd", "sgd", "qsgd"])
    'ranks 0, 1, 3 have qsgd; rank 2 has sgd'
    """
    start = 0
    if max(map(len, values)) > LENGTH:
        while len({value[: start + 1] for value in values}) == 1:
            start += 1
        start = max(0, start - 40)
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(value, []).append(name(rank))
    parts = []
    for value, ranks in holders.items():
        who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"
        shown = value[start : start + LENGTH]
        parts.append(f"{who} {'...' if start else ''}{shown}{'...' if len(value) > start + LENGTH else ''}")
    return "; ".join(parts)
