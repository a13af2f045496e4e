"""ATOMO's reproduction: measured variances are those of the formulas, and statements are judged."""

from __future__ import annotations

import pytest
import torch

from thinwire.compressors.atomo import AtomoSpectral, probabilities
from thinwire.compressors.terngrad import TernGrad
from thinwire.lab import gradient
from thinwire.lab.reproduce import atomo_facts
from thinwire.lab.reproduce.atomo import TRAINING, Atomo
from thinwire.lab.reproduce.atomo_facts import ATOMS, COMPRESSORS, RECORDED, SPECIAL
from thinwire.lab.reproduce.study import Means, Run


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomo_facts, "DRAWS", 20)


@pytest.mark.parametrize(("plain", "norm"), [("qsgd", 2.0), ("ternary", float("inf"))])
def test_quantisers_and_their_budgets_have_the_variance_of_the_formula(plain: str, norm: float) -> None:
    """|g|_1 |g|_p / |g|_2^2 - 1."""
    g = gradient.load()[0].double()
    expected = float(g.abs().sum() * torch.linalg.vector_norm(g, norm) / g.square().sum()) - 1
    for method in (plain, f"elements, s of {plain}"):
        assert atomo_facts.measure(COMPRESSORS[SPECIAL][method](), 1, *gradient.load())["variance"] == pytest.approx(
            expected, rel=0.1
        )


def test_singular_vectors_have_the_variance_of_the_formula() -> None:
    g, layout = gradient.load()
    made, expected = AtomoSpectral(ATOMS), 0.0
    for t in made.matrices(layout):
        if not t.raw:
            padded = torch.nn.functional.pad(g[t.start : t.stop].double(), (0, t.m * t.k - (t.stop - t.start)))
            size = torch.linalg.svdvals(padded.view(t.m, t.k))
            p = probabilities(size, ATOMS)
            expected += float((size.square() * (1 / p - 1))[p > 0].sum())
    found = atomo_facts.measure(made, 1, g, layout)
    assert found["variance"] == pytest.approx(expected / float(g.double().square().sum()), rel=0.25)
    assert found["variance"] < atomo_facts.even()
    assert 0.4 < found["bias"] < 1.8


def test_shared_draws_are_decoded_with_their_seed() -> None:
    found = atomo_facts.measure(COMPRESSORS[RECORDED]["elements, even"](), 1, *gradient.load())
    assert found["variance"] == pytest.approx(1 / atomo_facts.SHARE - 1, rel=0.2)
    assert found["bias"] < 2


def test_bias_is_seen() -> None:
    """Clipping is biased, and that adds up over the draws."""
    assert atomo_facts.measure(TernGrad(clip=1.0), 1, *gradient.load())["bias"] > 3


def test_no_probabilities_are_better() -> None:
    g = torch.Generator().manual_seed(0)
    size = torch.rand(40, dtype=torch.float64, generator=g) ** 3
    best = probabilities(size, 5.0)
    assert float(best.sum()) == pytest.approx(5)
    least = float((size.square() / best).sum())
    for _ in range(50):
        other = (best * (0.5 + torch.rand(40, dtype=torch.float64, generator=g))).clamp(1e-6, 1)
        other = other * min(1.0, 5 / float(other.sum()))
        assert float((size.square() / other).sum()) >= least


def test_a_short_training() -> None:
    (row,) = Atomo().work(Run(TRAINING, "singular vectors", 0, 1))
    assert 0.3 < row["accuracy"] < 1
    assert 1.5 < row["bits"] < 3
    assert 0 < row["variance"] < 32


def _judged(claim: str, at: Means) -> bool:
    (found,) = [s for s in Atomo.statements if claim in s.claim]
    return found.test(at)[1]


def test_statements_are_judged() -> None:
    mine, other = (RECORDED, "singular vectors"), (RECORDED, "qsgd")
    low, high = {"variance": 1.0, "bits": 2.0}, {"variance": 2.0, "bits": 2.0}
    assert _judged("less than QSGD", {mine: low, other: high})
    assert not _judged("less than QSGD", {mine: high, other: low})
    assert not _judged("unbiased (singular", {mine: {"bias": 3.0}})
    there = {(TRAINING, "singular vectors"): {"accuracy": 0.9, "bits": 2.0}}
    assert not _judged("as accurately as qsgd", there | {(TRAINING, "qsgd"): {"accuracy": 0.98, "bits": 2.0}})
    near = there | {(TRAINING, "qsgd"): {"accuracy": 0.92, "bits": 2.0}}  # which 360 images cannot tell from 90%
    assert _judged("as accurately as qsgd", near)
