"""The programme of L-GreCo against all choices there are."""

from __future__ import annotations

import itertools
import random

import pytest

from thinwire.core.budget import cheapest, no_worse, total


def smallest(errors: list[list[float]], sizes: list[list[int]], budget: float) -> int:
    """The smallest size within the budget, by trying all."""
    every = itertools.product(*(range(len(row)) for row in errors))
    return min(total(sizes, c) for c in every if sum(e[o] for e, o in zip(errors, c, strict=True)) <= budget)


def case(draw: random.Random, *, whole: bool) -> tuple[list[list[float]], list[list[int]]]:
    """4 tensors x 4 options, of which the larger ones lose less."""
    errors, sizes = [], []
    for _ in range(4):
        scale = 10 ** draw.uniform(0, 2)
        lost = sorted((draw.random() * scale for _ in range(4)), reverse=True)
        errors.append([float(round(x)) for x in lost] if whole else lost)
        sizes.append(sorted(draw.randrange(1, 1000) for _ in range(4)))
    return errors, sizes


def test_it_is_the_best_of_all_choices() -> None:
    draw, better = random.Random(0), 0
    for _ in range(20):  # errors that are whole bins: nothing is rounded
        errors, sizes = case(draw, whole=True)
        budget = sum(row[1] for row in errors)
        found = cheapest(errors, sizes, budget, bins=max(1, int(budget)))
        assert found is not None
        assert total(sizes, found) == smallest(errors, sizes, budget)
    for _ in range(20):  # rounded up: within the budget, and as good as the best for a budget 4 bins smaller
        errors, sizes = case(draw, whole=False)
        budget = sum(row[1] for row in errors)
        found = no_worse(errors, sizes, uniform=1)
        assert sum(e[o] for e, o in zip(errors, found, strict=True)) <= budget * (1 + 1e-12)
        assert smallest(errors, sizes, budget) <= total(sizes, found) <= smallest(errors, sizes, budget * (1 - 4e-4))
        assert total(sizes, found) <= total(sizes, [1] * 4)
        better += total(sizes, found) < total(sizes, [1] * 4)
    assert better > 10


def test_what_does_not_fit_is_not_chosen() -> None:
    assert cheapest([[2.0], [3.0]], [[1], [1]], budget=4.0) is None
    assert cheapest([[0.0, float("nan")]], [[9, 1]], budget=1.0) == [0]
    assert no_worse([[0.0, 1.0]], [[9, 1]]) == [0]  # a budget of nothing
    assert no_worse([], []) == []
    with pytest.raises(ValueError, match="as many errors as sizes"):
        cheapest([[1.0]], [[1, 2]], 1.0)
    with pytest.raises(ValueError, match="write a finite budget"):
        cheapest([[1.0]], [[1]], float("nan"))
