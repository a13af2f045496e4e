"""Method: an exchange, a schedule and an overlap policy. It is a value: compare it, print it, store it as JSON."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import cleandoc, signature
from typing import ClassVar, Literal, NamedTuple, ParamSpec, TypeAlias, final

from thinwire.core.config import Config, check_choice, make_id, python_number
from thinwire.core.exchange import Exchange
from thinwire.core.recipe import Recipe
from thinwire.core.registry import Registry, suggest
from thinwire.core.schedule import Sync

P = ParamSpec("P")


class Sizes(NamedTuple):
    """Of the pieces that a gradient travels in, in 2^20 bytes of float32, and how many are open at a time."""

    first_mb: float  # of the bucket that backward fills first
    bucket_mb: float
    chunk_mb: float
    in_flight: int
    sum_mb: float  # of what is summed as it is; infinite where a bucket's sum is one piece


ON_CPU, ON_GPU = (16.0, 16.0), (128.0, 192.0)  # buckets and chunks
LEAST_ON_GPU = 64.0  # of a bucket
QUARTERS = 4  # buckets of a model on a GPU, as far as these two allow; the first has a quarter of one


@final
@dataclass(frozen=True)
class Overlap(Config):
    """What else happens meanwhile: how parameters are bucketed, how buckets are cut, how many pieces are open.

    Buckets of `bucket_mb` (of float32) are launched as backward fills them, and travel in chunks of `chunk_mb`, of
    which `in_flight` are open at a time: one is encoded while another is on the wire and a third is decoded. Where
    nothing is encoded, a bucket is summed in one piece, unless `chunk_mb` or `into_forward` is given.

    What is None depends on where the gradients are. On a CPU both sizes are 16. To a GPU large pieces are no slower
    than small ones, but the host takes as long to launch them: there buckets have a quarter of the model, from 64 to
    128, so that something travels while backward computes, and chunks have 192, so that few tensors are cut. The
    first bucket has a quarter of the others' size, so that the link is busy soon.

    With `buckets="planned"` that holds for the first rounds only, in which ranks measure when gradients are ready and
    what exchanges take; then buckets are cut anew, where the step ends earliest (`thinwire.engine.planned`). With
    `buckets="mg-wfbp"` they are cut by MG-WFBP's rule, which is sometimes worse.

    With `into_forward`, `optimizer.step()` does not wait: in the next forward pass each module waits for its own
    parameters, which step when their gradients are there. Buckets are sent as they are "ready", or those first that
    are in "need" first, in one order that rank 0 decides from what was measured. The numbers are those of steps that
    wait, with the same buckets and pieces: give `chunk_mb` to both.
    """

    name: ClassVar[str] = "overlap"
    bucket_mb: float | None = None
    chunk_mb: float | None = None
    in_flight: int = 5
    buckets: Literal["fixed", "planned", "mg-wfbp"] = "fixed"
    into_forward: Literal["ready", "need"] | None = None

    def __post_init__(self) -> None:
        check_choice("Overlap", "buckets", self.buckets, ("fixed", "planned", "mg-wfbp"))
        check_choice("Overlap", "into_forward", self.into_forward, (None, "ready", "need"))
        given = [mb for mb in (self.bucket_mb, self.chunk_mb) if mb is not None]
        legal = all(isinstance(mb, int | float) and 0 < mb < math.inf for mb in given)
        if not legal or not isinstance(self.in_flight, int) or self.in_flight < 1:
            raise ValueError(
                f"Overlap(bucket_mb={self.bucket_mb!r}, chunk_mb={self.chunk_mb!r}, in_flight={self.in_flight!r}): "
                "write bucket_mb > 0, chunk_mb > 0 and in_flight >= 1"
            )

    def sizes(self, device: str, model_mb: float = math.inf) -> Sizes:
        """What the settings are for gradients on this kind of device, in a model of so many megabytes.

        >>> Overlap(chunk_mb=4).sizes("cuda", model_mb=400)
        Sizes(first_mb=25.0, bucket_mb=100.0, chunk_mb=4, in_flight=5, sum_mb=4)
        """
        bucket, chunk = ON_GPU if device == "cuda" else ON_CPU
        if device == "cuda":
            bucket = min(bucket, max(LEAST_ON_GPU, model_mb / QUARTERS))
        first = bucket / QUARTERS if device == "cuda" else bucket
        chunk = chunk if self.chunk_mb is None else self.chunk_mb
        # In one lane, a large sum would share the link with smaller ones in the others, which are needed after it.
        cut = self.chunk_mb is not None or self.into_forward is not None
        return Sizes(
            first if self.bucket_mb is None else self.bucket_mb,
            bucket if self.bucket_mb is None else self.bucket_mb,
            chunk,
            self.in_flight,
            chunk if cut else math.inf,
        )


@final
@dataclass(frozen=True)
class Method(Config):
    """One point in the space of the axes."""

    name: ClassVar[str] = "method"
    exchange: Exchange
    sync: Sync = field(default_factory=Sync)
    overlap: Overlap = field(default_factory=Overlap)
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.exchange, Exchange):
            raise TypeError(f"Method(exchange=...) takes an Exchange; got {self.exchange!r}")
        if self.sync.adapt is not None:
            self.sync.adapt.check(self.exchange)

    def lanes(self, device: str = "cpu") -> int:
        """Pieces of work that may be open at a time, where gradients are on this kind of device."""
        return 1 if self.exchange.one_piece else self.overlap.sizes(device).in_flight

    @property
    def id(self) -> str:
        """The id that it was made with, while that still makes an equal method; otherwise a digest of its parts."""
        with suppress(ValueError):  # some parts have no id that fits on a line
            if self.label and METHODS.parse(self.label) == self:
                return self.label
        parts = replace(self, label="").to_json()
        return f"custom-{zlib.crc32(parts.encode()):08x}"

    @property
    def recipe(self) -> Recipe:
        """What it wants of the optimizer: what its factory states, while the exchange is still the factory's."""
        with suppress(ValueError):
            if self.label and METHODS.parse(self.label).exchange == self.exchange:
                stated = RECIPES.get(self.label.partition(":")[0], Recipe())
                return stated if isinstance(stated, Recipe) else stated(self)
        return Recipe()


METHODS: Registry[Method] = Registry("method", "thinwire.methods")
"""Every paper's factory by its id."""


Stated: TypeAlias = Recipe | Callable[[Method], Recipe]
RECIPES: dict[str, Stated] = {}
"""Recipes by the name of the factory; methods that are missing here have `Recipe()`."""


def method(name: str, recipe: Stated | None = None) -> Callable[[Callable[P, Method]], Callable[P, Method]]:
    """Register a factory; the methods it makes carry `name` and the arguments that differ from the defaults.

    `recipe` says what they want of the optimizer, or is a function of the method where that depends on its arguments.
    `help` shows the docstring of the factory's module, with the equations, above that of the factory itself.
    """

    def decorate(make: Callable[P, Method]) -> Callable[P, Method]:
        taken = signature(make)

        @wraps(make)
        def labelled(*args: P.args, **kwargs: P.kwargs) -> Method:
            wrong = next((key for key in kwargs if key not in taken.parameters), None)
            if wrong is not None and not any(one.kind is one.VAR_KEYWORD for one in taken.parameters.values()):
                raise TypeError(f"method '{name}' has no setting '{wrong}'{suggest(wrong, taken.parameters)}")
            bound = taken.bind(*map(python_number, args), **{k: python_number(v) for k, v in kwargs.items()})
            label = make_id(name, {k: (v, taken.parameters[k].default) for k, v in bound.arguments.items()})
            return replace(make(*bound.args, **bound.kwargs), label=label)

        module = sys.modules.get(make.__module__)  # code that is given to exec has none
        docs = (module and module.__doc__, make.__doc__)
        labelled.__doc__ = "\n\n".join(cleandoc(text) for text in docs if text)
        METHODS.add(name, labelled)
        if recipe is not None:
            RECIPES[name] = recipe
        return labelled

    return decorate
