"""Statements on natural compression and natural dithering, and how the measured means judge them."""

from __future__ import annotations

from collections.abc import Iterator

from thinwire.lab.records import Row
from thinwire.lab.reproduce.study import Means, Place, Statement

WORST = "all 4/3"
VECTORS = ("Gaussian, d=1024", "Gaussian, d=65536", "gradient, d=1024")
TRAINING = "training"
LEVELS = (2, 3, 4, 5, 6, 7)
TRAINED = ("float32", "natural", "s=8", "127 even")
NEAR = 1.5  # points of accuracy that count as no loss
CHANCE = 1.05  # what draws and a finite mean may add to a bound

ROUNDED: tuple[Place, ...] = tuple((case, "natural") for case in (WORST, *VECTORS))
DITHERED: tuple[Place, ...] = tuple((case, f"s={s}") for case in VECTORS for s in LEVELS)


def _dithered(at: Means) -> Iterator[tuple[int, Row]]:
    for case, method in DITHERED:
        yield int(method.removeprefix("s=")), at[case, method]


def _eighth(at: Means) -> tuple[str, bool]:
    found = [at[place]["error"] for place in ROUNDED]
    told = f"{found[0]:.4f} at 4/3, {min(found[1:]):.3f} to {max(found[1:]):.3f} elsewhere"
    return told, max(found) <= CHANCE / 8 and found[0] > 1 / 8 / CHANCE


def _unbiased(at: Means) -> tuple[str, bool]:
    found = [at[place]["bias"] for place in ROUNDED + DITHERED]
    return f"{min(found):.2f} to {max(found):.2f} of what chance alone would leave", max(found) < 1.3


def _nine(at: Means) -> tuple[str, bool]:
    ratio = at[ROUNDED[-1]]["ratio"]
    return f"{32 / ratio:.2f} bits, {ratio:.2f} times", abs(ratio - 32 / 9) < 0.01


def _bounded(at: Means) -> tuple[str, bool]:
    parts = [row["error"] / row["bound"] for _, row in _dithered(at)]
    return f"{min(parts):.2f} to {max(parts):.2f} of the bound", max(parts) < CHANCE


def _composed(at: Means) -> tuple[str, bool]:
    parts = [row["error"] / (9 / 8 * row["even"] + 1 / 8) for _, row in _dithered(at)]
    return f"{min(parts):.2f} to {max(parts):.2f} of 9/8 v + 1/8", max(parts) < CHANCE


def _fewer(case: str) -> Statement:
    def test(at: Means) -> tuple[str, bool]:
        found = {s: at[case, f"s={s}"]["needed"] for s in LEVELS}
        told = ", ".join(f"{found[s]:.0f}" for s in LEVELS)
        return f"{told} for s = {LEVELS[0]} to {LEVELS[-1]}", all(n > 0.8 * 2 ** (s - 1) for s, n in found.items())

    needs = tuple((case, f"s={s}") for s in LEVELS)
    claim = f"{case}: matching the variance of s levels takes 2^(s-1) even ones (at least four fifths of them)"
    return Statement(claim, "theorem 8", needs, test)


def _same(at: Means) -> tuple[str, bool]:
    top = f"s={LEVELS[-1]}"
    times = [at[case, top]["same"] / at[case, top]["error"] for case in VECTORS]
    told = ", ".join(f"{x:.1f} ({case})" for x, case in zip(times, VECTORS, strict=True))
    return f"{told} at {top}", min(times) > 2 ** (LEVELS[-1] - 1) / LEVELS[-1]


def _accuracy(at: Means, mine: str, other: str) -> float:
    return 100 * float((at[TRAINING, mine]["accuracy"] or 0) - (at[TRAINING, other]["accuracy"] or 0))


def _keeps(at: Means) -> tuple[str, bool]:
    away = _accuracy(at, "natural", "float32")
    losses = [at[TRAINING, method]["loss"] for method in ("natural", "float32")]
    return f"{away:+.2f} points, training loss {losses[0]:.2g} against {losses[1]:.2g}", away > -NEAR


def _powers(at: Means) -> tuple[str, bool]:
    away = _accuracy(at, "s=8", "127 even")
    ratios = [at[TRAINING, method]["ratio"] for method in ("s=8", "127 even")]
    return f"{away:+.2f} points, {ratios[0]:.1f} times smaller against {ratios[1]:.1f}", away > -NEAR and ratios[
        0
    ] > ratios[1]


STATEMENTS = (
    Statement(
        "natural compression adds at most 1/8 of the squared length", "omega = 1/8, at 4/3 2^k", ROUNDED, _eighth
    ),
    Statement("neither has a bias", "proved", ROUNDED + DITHERED, _unbiased),
    Statement("an element takes 9 bits", "3.56 times smaller than float32", ROUNDED, _nine),
    Statement("natural dithering is within theorem 7's bound", "proved", DITHERED, _bounded),
    Statement(
        "s levels have the variance v of 2^(s-1) even ones, rounded to powers of two",
        "theorems 5 and 8",
        DITHERED,
        _composed,
    ),
    *map(_fewer, VECTORS),
    Statement(
        "the variance is 2^(s-1)/s times smaller than that of as many even levels", "theorem 8", DITHERED, _same
    ),
    Statement(
        "natural compression both ways keeps float32's accuracy",
        "shown: ResNet-110 and AlexNet on CIFAR-10",
        tuple((TRAINING, method) for method in ("float32", "natural")),
        _keeps,
    ),
    Statement(
        "8 powers of two keep the accuracy of 127 even levels, with fewer bits",
        "shown: VGG11 on CIFAR-10, 8 instead of 128",
        tuple((TRAINING, method) for method in ("s=8", "127 even")),
        _powers,
    ),
)
