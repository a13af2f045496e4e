"""Compress one vector with every quantiser: bytes, error and time of each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from thinwire.core.types import Key, Layout
from thinwire.lab.records import Row, quantiles

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.compressor import Compressor

REPEATS = 20


def compare(x: Tensor, layout: Layout, compressors: Mapping[str, Compressor]) -> Iterator[Row]:
    """One row per compressor: bytes on the wire, mean squared error over 20 keys, median times."""
    size = x.double().square().sum().item()
    for name, c in compressors.items():
        error, encode, decode, sent = 0.0, [], [], 0
        for step in range(REPEATS):
            key = Key(seed=1, step=step)
            start = time.perf_counter()
            payload = c.encode(x, layout, key)
            middle = time.perf_counter()
            got = c.decode(payload, layout, key=key)
            decode.append(time.perf_counter() - middle)
            encode.append(middle - start)
            error += (got - x).double().square().sum().item() / size / REPEATS
            sent += payload.nbytes
        omega, delta = c.omega(layout.numel), c.delta(layout.numel)
        yield {
            "method": name,
            "bytes_sent": sent // REPEATS,
            "bits_per_element": 8 * sent / REPEATS / layout.numel,
            "ratio": 4 * layout.numel * REPEATS / sent,
            "nmse": error,
            "unbiased": c.unbiased,
            "omega": omega,
            "delta": delta,
            "encode_ms": 1e3 * quantiles(encode)[1],
            "decode_ms": 1e3 * quantiles(decode)[1],
        }
