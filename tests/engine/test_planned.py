"""Planned buckets: the programme against all cuts, MG-WFBP's rule against its facts, and what is measured."""

from __future__ import annotations

import json
import random
from itertools import accumulate
from typing import Any

import pytest
import torch

import thinwire as tw
from thinwire.core.clock import Span
from thinwire.engine.plan import Item, Plan
from thinwire.engine.planned import RULES, Cost, Cuts, end, exact, fit, merged
from thinwire.engine.planner import Planner, Sample, decided, names, planner, samples

CPU = torch.device("cpu")
LAYERS = 7


def case(rng: random.Random) -> tuple[list[float], list[float], Cost]:
    ready = list(accumulate(rng.random() for _ in range(LAYERS)))
    return ready, [rng.expovariate(1.0) for _ in ready], Cost(rng.choice([0, 0.1, 0.5, 3]), rng.choice([0.1, 0.5, 2]))


def every_cut() -> list[Cuts]:
    return [[i + 1 for i in range(LAYERS - 1) if mask >> i & 1] + [LAYERS] for mask in range(1 << (LAYERS - 1))]


def test_the_programme_is_the_best_of_all_cuts_and_the_rule_is_never_worse_than_either_extreme() -> None:
    rng, all_cuts, as_good = random.Random(3), every_cut(), 0
    for _ in range(150):
        ready, sizes, cost = case(rng)
        best = min(end(ready, sizes, cost, cuts) for cuts in all_cuts)
        each, one = list(range(1, LAYERS + 1)), [LAYERS]
        by_rule = end(ready, sizes, cost, merged(ready, sizes, cost))
        assert end(ready, sizes, cost, exact(ready, sizes, cost)) == pytest.approx(best, abs=1e-11)
        assert by_rule <= min(end(ready, sizes, cost, each), end(ready, sizes, cost, one)) + 1e-11
        if cost.a == 0:
            assert by_rule == pytest.approx(end(ready, sizes, cost, each), abs=1e-11)
        assert merged(ready, sizes, Cost(1e6, 1.0)) == exact(ready, sizes, Cost(1e6, 1.0)) == one
        as_good += by_rule <= best + 1e-11
    assert 50 < as_good < 150  # the rule is greedy


def test_a_late_end_needs_no_more_groups() -> None:
    rng = random.Random(4)
    for _ in range(50):
        ready, sizes, cost = case(rng)
        cuts = exact(ready, sizes, cost)
        few = exact(ready, sizes, cost, slack=0.1)
        assert len(few) <= len(cuts)
        assert end(ready, sizes, cost, few) <= 1.1 * end(ready, sizes, cost, cuts) + 1e-11


@pytest.mark.parametrize("cut", [merged, exact])
def test_groups_are_of_one_kind(cut) -> None:  # type: ignore[no-untyped-def]
    assert cut([0.0] * 5, [1.0] * 5, Cost(1.0, 0.0), list("aabba")) == [2, 4, 5]


def test_costs_are_fitted_and_never_below_0() -> None:
    fitted = fit([(1.0, 1.0), (3.0, 5.0)])  # the line would start below 0
    assert fitted.a == 0.0
    assert fitted.b == pytest.approx(1.6)
    assert fit([(1.0, 5.0), (3.0, 1.0)]) == Cost(3.0, 0.0)
    assert fit([(2.0, 4.0), (2.0, 6.0)]) == Cost(0.0, 2.5)
    assert fit([]) == Cost(0.0, 0.0)


def made(buckets: str = "planned", method: str = "qsgd:bits=4", **more: Any) -> Planner:
    overlap = tw.Overlap(buckets=buckets, **more)  # type: ignore[arg-type]
    items = [Item(name, (1 << 16,), CPU) for name in "abcd"] + [Item("bias", (8,), CPU)]
    found = planner(tw.Method(tw.method(method).exchange, overlap=overlap), items, None, ())
    assert found is not None
    return found


def cut(plan: Plan) -> list[list[str]]:
    return [[item.name for item in parcel.items] for parcel in plan.parcels]


def test_a_bucket_takes_from_its_launch_or_the_end_of_the_one_before() -> None:
    plan = made(bucket_mb=0.5).fixed()
    assert cut(plan) == [["d", "c"], ["b", "a"], ["bias"]]
    events = [
        *(Span("launch", at, at, bucket, -1) for bucket, at in enumerate((1.0, 2.0, 9.0))),
        *(Span("wire", 1.5, 4.0, 0, 0), Span("decode", 4.0, 5.0, 0, 0), Span("wire", 3.0, 7.0, 1, 0)),
        *(Span("wire", 9.0, 9.5, 2, 0), Span("backward ends", 8.0, 8.0, -1, -1)),
    ]
    assert samples(events, plan) == {0: Sample(1 << 17, 4.0), 1: Sample(1 << 17, 2.0)}  # and none of the side bucket


def test_the_last_rank_that_is_ready_counts_and_tensors_stand_as_they_are_ready() -> None:
    one = made(bucket_mb=0.5)
    late = {"a": 0.3, "b": 0.2, "c": 0.0, "d": 0.1, "bias": 0.3}
    said = [
        json.dumps({"ready": ready, "samples": [[1 << 16, seconds], [1 << 17, 2 * seconds]]})
        for ready, seconds in ((dict.fromkeys("abcd", 0.0) | {"bias": 0.0}, 0.2), (late, 0.1))
    ]
    plan = decided(one, said)  # 0.1 s a tensor, without a fixed part
    assert cut(plan) == [["c"], ["d"], ["b"], ["a"], ["bias"]]
    assert [parcel.compressed for parcel in plan.parcels] == [True] * 4 + [False]
    assert one.of_names(json.loads(json.dumps(names(plan)))) == plan
    # Where there is nothing to gain, the fixed buckets stay.
    assert decided(one, [said[0]]) == one.fixed()
    with pytest.raises(ValueError, match="other tensors than the model"):
        one.of_names([(True, ["a"])])


def test_the_rule_may_cut_in_place_of_the_programme() -> None:
    """What is ready within a, here 0.1 s, of the tensor before it goes with that; all at once would be as early."""
    ready = {"a": 0.32, "b": 0.3, "c": 0.0, "d": 0.05, "bias": 0.32}
    cost = Cost(0.1, 0.01 / (1 << 16))
    by_rule, best = (made(buckets, bucket_mb=0.25).best(ready, cost, cost) for buckets in ("mg-wfbp", "planned"))
    assert cut(by_rule) == [["c", "d"], ["b", "a"], ["bias"]]
    assert cut(best) == cut(by_rule)
    # The rule lets a large tensor wait for a small one, and the last tensor for both.
    ready_at, sizes, each = [0.9, 1.5, 2.9], [10.0, 1.0, 10.0], Cost(1.0, 0.1)
    greedy, exactly = (RULES[name](ready_at, sizes, each, None) for name in ("mg-wfbp", "planned"))
    assert end(ready_at, sizes, each, greedy) == pytest.approx(5.6)
    assert end(ready_at, sizes, each, exactly) == pytest.approx(5.0)


def test_without_compression_small_tensors_travel_with_the_others() -> None:
    one = made(method="sgd", bucket_mb=0.5)
    late = {"a": 0.3, "b": 0.2, "c": 0.0, "d": 0.1, "bias": 0.25}
    cost = Cost(0.001, 0.1 / (1 << 16))
    plan = one.best(late, cost, cost)
    assert cut(plan) == [["c"], ["d"], ["b"], ["bias", "a"]]


def test_the_order_depends_on_how_much_is_sent_and_not_on_how_single_buckets_ended() -> None:
    """Two buckets go until the first layer is ready; by a fit to small buckets that were slow, it would be one."""
    one = made("fixed", "sgd", bucket_mb=0.25, in_flight=1, into_forward="need")
    ready = {"a": 0.15, "b": 0.0, "c": 0.0, "d": 0.0, "bias": 0.15}
    slow, whole = [[1 << 16, 0.15]] * 4, [[1 << 18, 0.2]]  # together 0.1 s for 1 << 16
    plan = decided(one, [json.dumps({"ready": ready, "samples": slow + whole})])
    assert [name for name, *_ in cut(plan) if name != "bias"] == ["d", "c", "a", "b"]


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("local-sgd", "gradients that backward"),
        ("d-psgd", "gradients that backward"),
        ("asgd", "gradients that backward"),
    ],
)
def test_only_gradients_in_rounds_are_planned(method: str, says: str) -> None:
    one = tw.method(method)
    planned = tw.Method(one.exchange, one.sync, tw.Overlap(buckets="planned"))
    with pytest.raises(ValueError, match=says):
        tw.simulate(planned, "digits", workers=2, steps=1)
    with pytest.raises(ValueError, match="buckets='fixed' or 'planned' or 'mg-wfbp'"):
        tw.Overlap(buckets="best")  # type: ignore[arg-type]
