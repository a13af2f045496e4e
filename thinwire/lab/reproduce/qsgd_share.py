"""How much of an epoch goes to communication, on a link of 100 Mbit/s: times measured here, the link computed.

    step = gradient + encode + n decodes + bits sent / rate

Float32 sends 2 (n-1)/n of its gradient (a ring all-reduce), QSGD n-1 messages (to every other worker, as published).
Encodes and decodes count as communication. Seconds are this process's own, so that others on the machine do not
matter; latency and overlap are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from thinwire.core.channel import Channel
from thinwire.core.types import Key
from thinwire.lab.records import Row
from thinwire.lab.reproduce.one_model import BATCH, FLOAT, WORKERS, images
from thinwire.lab.reproduce.ring import gradients
from thinwire.lab.residual import Residual

LINK = 100e6  # bits per second


def shares(task: str, channels: Mapping[str, Channel], data: Path | None, repeats: int = 30) -> list[Row]:
    """Rows of kind "wire" and "epoch", in seconds of an epoch, and "share", the part of it for communication."""
    some, batch = images(task, data), BATCH[task]
    net = Residual(halve=task == "fashion")
    w, x, y = net.start(0).unsqueeze(0), some.train_x[:batch].unsqueeze(0), some.train_y[:batch].unsqueeze(0)
    compute = _seconds(lambda: gradients(net, w, x, y), repeats)
    gradient, steps = gradients(net, w, x, y)[0][0], len(some.train_y) // (WORKERS * batch)
    rows = []
    for label, channel in channels.items():
        bits, codes = _message(channel, gradient, net, repeats)
        wire = bits / LINK
        whole = compute + codes + wire
        for kind, value in (("wire", steps * wire), ("epoch", steps * whole), ("share", 1 - compute / whole)):
            rows.append(_row(kind, label, value, bits / (WORKERS - 1) / gradient.numel()))
    return rows


def _message(channel: Channel, gradient: Tensor, net: Residual, repeats: int) -> tuple[float, float]:
    """Bits that a worker sends per step, and seconds of its encode and its decodes."""
    if channel == FLOAT:
        return 2 * (WORKERS - 1) / WORKERS * 32 * gradient.numel(), 0.0
    encoder, layout, out = channel.encoder, net.layout, torch.zeros_like(gradient)
    payload = encoder.encode(gradient, layout, Key())
    encode = _seconds(lambda: encoder.encode(gradient, layout, Key()), repeats)
    decode = _seconds(lambda: encoder.decode_add(payload, layout, out, 1.0), repeats)
    return 8.0 * (WORKERS - 1) * payload.nbytes, encode + WORKERS * decode


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """The median of `repeats`, after one that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return median(times)


def _row(kind: str, label: str, value: float, bits: float) -> Row:
    return {"kind": kind, "label": label, "seed": 0, "value": value, "limit": None, "bits_per_element": bits}
