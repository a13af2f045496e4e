"""Compressor: a lossy, stateless map from a vector to a payload and back. A new one needs three small methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.core.config import Config
from thinwire.core.errors import PayloadError
from thinwire.core.payload import HEADER, Header, Payload, Tail
from thinwire.core.started import Started, Used, finish
from thinwire.core.types import Key, Layout
from thinwire.kernels import checksum as sums

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Compressor(Config, ABC):
    """A subclass writes `nbytes`, `write` and `add`, and declares the facts; `encode` and `decode` are given.

    Subclasses are frozen dataclasses and final. They hold no state and draw noise only from the key.
    """

    linear: ClassVar[bool] = False
    """Whether bodies are float32 vectors whose sum decodes to the sum, so that they may be added on the wire."""
    whole_tensors: ClassVar[bool] = False
    """Whether what elements share, such as a scale, belongs to a whole tensor and not to a part of it."""
    fixed_size: ClassVar[bool] = True
    """Whether `nbytes` is exact, so that peers need not exchange sizes."""
    keeps_scale: ClassVar[bool] = True
    """Whether C(a x) grows with a, which error feedback needs."""
    decodes_any: ClassVar[bool] = False
    """Whether any bytes of the right size decode to some vector, without the sender's key. A checksum that a GPU
    computes may then be looked at after decoding."""

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """Whether E[C(x)] = x, to the precision of float32."""

    @abstractmethod
    def omega(self, d: int) -> float | None:
        """If unbiased: E|C(x) - x|^2 <= omega |x|^2 for every x of d elements. None if there is no such bound."""

    @abstractmethod
    def delta(self, d: int) -> float | None:
        """If a contraction: E|C(x) - x|^2 <= (1 - delta) |x|^2, 0 < delta <= 1. None if not."""

    @abstractmethod
    def nbytes(self, layout: Layout) -> int:
        """Bytes of the body: exact where `fixed_size`, otherwise an upper bound."""

    @abstractmethod
    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | Tensor | None:
        """Encode `x` into `body`; return the bytes used, or None for all of them.

        On a GPU the bytes used may be a tensor of one element, which is waited for when it is needed.
        """

    @abstractmethod
    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """`out += weight * decoded`, in place. `key` is the sender's, so that what it drew can be drawn again."""

    def put(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """`out = weight * decoded`, by `add` to zeros. A subclass whose pass need not read `out` may replace it."""
        self.add(body, layout, key, out.zero_(), weight)

    def write_with_feedback(
        self, x: Tensor, layout: Layout, key: Key, body: Tensor, e: Tensor, alpha: float, beta: float
    ) -> int | Tensor | None:
        """Write p = x + alpha e; then e = beta e + (x - decoded p), in place. Where p is not finite, e stays."""
        wide = x.float()
        used = _write(self, wide + e * alpha, layout, key, body)
        sent = torch.zeros_like(wide)
        if layout.numel:
            self.add(body[: None if used is None else int(used)], layout, key, sent, 1.0)
        keep_error(e, beta, wide, sent)
        return used

    def start(
        self, x: Tensor, layout: Layout, key: Key, body: Tensor, fed: tuple[Tensor, float, float] | None
    ) -> Used:
        """`write`, or `write_with_feedback` with e, alpha, beta; what is left to a codec is done with others'."""
        if fed is None:
            return _write(self, x, layout, key, body)
        return self.write_with_feedback(x, layout, key, body, *fed)

    def put_each(self, wanted: Sequence[tuple[Payload, Layout, Tensor, Key]]) -> None:
        """`mean` of each payload alone, with its layout, into its vector."""
        for payload, layout, out, key in wanted:
            self.mean([payload], layout, out, 1.0, key)

    @final
    @cached_property
    def digest(self) -> int:
        """32 bits that differ between compressors and settings."""
        text = torch.frombuffer(bytearray(self.to_json().encode()), dtype=torch.uint8)
        return sums.finish(int(kernels.get("cpu").total(text)))

    @final
    def encode(
        self, x: Tensor, layout: Layout | None = None, key: Key | None = None, *, checksum: bool = True
    ) -> Payload:
        """`x` as a sealed payload. Without a layout `x` is one tensor of its own shape."""
        return finish([self.begin(x, layout, key, checksum=checksum)])[0]

    @final
    def begin(
        self, x: Tensor, layout: Layout | None = None, key: Key | None = None, *, checksum: bool = True
    ) -> Started:
        """Write the payload of `x`; `finish` seals it."""
        vector, layout = _vector(x, layout)
        key = key or Key()
        payload = Payload.new(self.nbytes(layout), vector.device)
        if isinstance(self, FusedCompressor):
            tail = self.write_fused(vector, layout, key, payload.body, checksum=checksum)
            return Started(payload, None, scheme(self, layout), key, checksum, tail)
        used = self.start(vector, layout, key, payload.body, None)
        return Started(payload, used, scheme(self, layout), key, checksum)

    @final
    def decode(self, payload: Payload, layout: Layout, *, key: Key | None = None) -> Tensor:
        """The decoded vector, float32."""
        out = torch.zeros(layout.numel, device=_payload(payload).data.device)
        self.decode_add(payload, layout, out, key=key)
        return out

    @final
    def decode_add(
        self,
        payload: Payload,
        layout: Layout,
        out: Tensor,
        weight: float = 1.0,
        *,
        key: Key | None = None,
        fresh: bool = False,
    ) -> None:
        """`out += weight * decode(payload)`, in place, after every check of the payload.

        With a key, step, bucket and hop must be those of the key, and its seed is the sender's. With `fresh`, what
        was in `out` counts as zero.
        """
        header = self.check(payload, layout, out, key)
        if layout.numel:
            seed, offset = (key.seed, key.offset) if key else (0, 0)
            sender = Key(seed, header.step, max(0, header.rank), header.bucket, header.hop, offset)
            (self.put if fresh else self.add)(payload.aligned().body, layout, sender, flat(out), weight)

    def mean(
        self, payloads: Sequence[Payload], layout: Layout, out: Tensor, weight: float, key: Key | None = None
    ) -> None:
        """`out = weight * sum of decode(payload)`, in place, added in the order given; 0 if there are none.

        A subclass with a pass for several payloads at once, which gives the same bits, may replace it.
        """
        if not payloads:
            out.zero_()
        for place, payload in enumerate(payloads):
            self.decode_add(payload, layout, out, weight, key=key, fresh=place == 0)

    @final
    def check(self, payload: Payload, layout: Layout, out: Tensor | None, key: Key | None) -> Header:
        """Every check before a payload is decoded, into `out` if into memory; returns what the header says."""
        header = _payload(payload).open(scheme(self, layout), key=key, at_once=not self.decodes_any)
        if out is not None:
            _check_out(payload, layout, out)
        expected, got = self.nbytes(layout), payload.nbytes - HEADER.size
        if got > expected or (self.fixed_size and got != expected):
            raise PayloadError(f"{self.id} of {layout.numel} elements has {expected} body bytes; {got} arrived")
        return header


class Biased(Compressor):
    """A compressor that is not right on average. It has no omega, but may be a contraction."""

    @final
    @property
    def unbiased(self) -> bool:
        """Never."""
        return False

    @final
    def omega(self, d: int) -> float | None:
        """None, since only unbiased compressors have one."""
        return None


class FusedCompressor(Compressor):
    """A compressor whose kernel can also keep the error and checksum what it writes, in the pass that encodes."""

    @abstractmethod
    def write_fused(
        self,
        x: Tensor,
        layout: Layout,
        key: Key,
        body: Tensor,
        *,
        residual: Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        checksum: bool = False,
    ) -> Tail | None:
        """Encode p = x + alpha e into all of `body`; with a residual set e = beta e + (x - decoded p), in place.

        With `checksum`, returns the sum of the end of the body, if the pass made it.
        """

    @abstractmethod
    def put_all(self, bodies: Sequence[Tensor], layout: Layout, out: Tensor, weight: float) -> None:
        """`out = weight * decoded`, summed over one body or more in the order given, in one pass if there is one."""

    @final
    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Call `write_fused` without a residual or a checksum."""
        self.write_fused(x, layout, key, body)
        return None

    @final
    def mean(
        self, payloads: Sequence[Payload], layout: Layout, out: Tensor, weight: float, key: Key | None = None
    ) -> None:
        """All payloads in one pass, where the tier has one."""
        for payload in payloads:
            self.check(payload, layout, out, key)
        if not payloads or not layout.numel:
            out.zero_()
            return
        self.put_all([payload.aligned().body for payload in payloads], layout, flat(out), weight)


def encode_with_feedback(
    compressor: Compressor,
    x: Tensor,
    residual: Tensor,
    layout: Layout | None = None,
    key: Key | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    checksum: bool = True,
) -> Payload:
    """Encode p = x + alpha e and set e = beta e + (x - decoded p), in place; fused where the compressor can.

    Where p is not finite the residual stays as it was.
    """
    return finish([begin_with_feedback(compressor, x, residual, layout, key, alpha, beta, checksum=checksum)])[0]


def begin_with_feedback(
    compressor: Compressor,
    x: Tensor,
    residual: Tensor,
    layout: Layout | None,
    key: Key | None,
    alpha: float,
    beta: float,
    *,
    checksum: bool,
) -> Started:
    """Write such a payload, and the residual; `finish` seals it."""
    vector, layout = _vector(x, layout)
    key = key or Key()
    e = _residual(residual, vector)
    payload = Payload.new(compressor.nbytes(layout), vector.device)
    if isinstance(compressor, FusedCompressor):
        tail = compressor.write_fused(
            vector, layout, key, payload.body, residual=e, alpha=alpha, beta=beta, checksum=checksum
        )
        return Started(payload, None, scheme(compressor, layout), key, checksum, tail)
    used = compressor.start(vector, layout, key, payload.body, (e, alpha, beta))
    return Started(payload, used, scheme(compressor, layout), key, checksum)


def keep_error(e: Tensor, beta: float, x: Tensor, sent: Tensor) -> None:
    """e = beta e + (x - sent), in place, except where that is not a number."""
    now = e * beta + (x - sent)
    e.copy_(torch.where(now.isnan(), e, now))


def scheme(compressor: Compressor, layout: Layout) -> int:
    """A 32-bit digest of the compressor, its settings and the shapes that it is used on, carried in the header."""
    return (compressor.digest + 0x9E3779B1 * layout.digest) & 0xFFFFFFFF


def _write(compressor: Compressor, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | Tensor | None:
    """`write`, refused where what it says that it used would be taken for damage by a receiver."""
    used, room = compressor.write(x, layout, key, body), body.numel()
    if isinstance(used, int) and (used > room or (compressor.fixed_size and used != room)):
        raise ValueError(
            f"write of {compressor.id} used {used} bytes, but nbytes is {room}; if sizes depend on the data, write "
            "fixed_size: ClassVar[bool] = False in the class, and let nbytes be the largest"
        )
    return used


def _vector(x: Tensor, layout: Layout | None) -> tuple[Tensor, Layout]:
    if not isinstance(x, Tensor):
        raise TypeError(f"encode takes a tensor; got {type(x).__name__}: write torch.tensor(x)")
    if x.dtype not in DTYPES:
        raise ValueError(f"gradients are float32, bfloat16 or float16; got {x.dtype}: write x.float()")
    if not x.is_contiguous():
        raise ValueError(f"encode reads contiguous tensors; got strides {x.stride()}: write x.contiguous()")
    if layout is None:
        layout = Layout.of([("", x)])
    if layout.numel != x.numel():
        raise ValueError(f"the layout has {layout.numel} elements but the tensor has {x.numel()}")
    return flat(x), layout


def flat(x: Tensor) -> Tensor:
    """A contiguous tensor as a vector outside the graph; a view is made only if it is none, since that takes long."""
    return x.detach().view(-1) if x.requires_grad or x.dim() != 1 else x


def _payload(payload: Payload) -> Payload:
    if not isinstance(payload, Payload):
        raise TypeError(
            f"decode takes a Payload; got {type(payload).__name__}: write Payload(tensor) around uint8 bytes"
        )
    return payload


def _residual(e: Tensor, x: Tensor) -> Tensor:
    if e.dtype != torch.float32 or e.numel() != x.numel() or not e.is_contiguous() or e.device != x.device:
        raise ValueError(
            f"the residual is a contiguous float32 tensor of {x.numel()} elements on {x.device}; "
            f"got {e.dtype} of shape {tuple(e.shape)} on {e.device}"
        )
    return flat(e)


def _check_out(payload: Payload, layout: Layout, out: Tensor) -> None:
    if out.dtype != torch.float32 or not out.is_contiguous() or out.numel() != layout.numel:
        raise ValueError(
            f"decode_add adds into a contiguous float32 tensor of {layout.numel} elements; "
            f"got {out.dtype} of shape {tuple(out.shape)}"
        )
    if out.device != payload.data.device:
        raise ValueError(f"the payload is on {payload.data.device} but the tensor to add into is on {out.device}")
