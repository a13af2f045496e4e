"""The local-SGD family on the clock: what each paper says about its method, beside the same sums done by hand."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise

import pytest
import torch
from battery import vector
from points import LR, SGDS, WORKERS, Course, D, Make, close, grad_of, locally, loss_of, run, spread
from torch import Tensor, nn
from torch.optim import Adam

import thinwire as tw
from thinwire import Layout, methods
from thinwire.core.payload import HEADER
from thinwire.lab.world import World
from thinwire.sim import Problem, simulate
from thinwire.sync import Growing, Seen, Shrinking


def momenta(course: Course) -> Tensor:
    return torch.stack([next(iter(o.state.values()))["momentum_buffer"] for o in course.optimizers])


def ring(steps: int) -> float:
    """Bytes that a rank sends for the sum of `steps` models of float32."""
    return steps * 2 * (WORKERS - 1) / WORKERS * 4 * D


# Local SGD


@pytest.mark.parametrize("make", SGDS.values(), ids=SGDS)
def test_a_mean_in_every_step_is_synchronous_sgd(make: Make) -> None:
    in_step = run(methods.sgd(), 20, make)
    close(run(methods.local_sgd(every=1), 20, make).models, in_step.models)
    close(run(methods.pr_sgd(every=1), 20, make).models, in_step.models)


def test_but_not_with_adam() -> None:
    found = [run(one, 20, partial(Adam, lr=LR)).models[0] for one in (methods.sgd(), methods.local_sgd(every=1))]
    assert float((found[0] - found[1]).abs().max()) > 0.01


@pytest.mark.parametrize("every", [1, 5])
def test_alone_or_on_the_same_data_it_is_sequential(every: int) -> None:
    alone = run(methods.local_sgd(every=every), 10, SGDS["nesterov"], workers=1).models[0]
    together = run(methods.local_sgd(every=every), 10, SGDS["nesterov"], same=True).models
    sequential = run(methods.sgd(), 10, SGDS["nesterov"], workers=1).models[0]
    for x in (alone, *together):
        close(x, sequential)


def test_after_a_round_every_model_is_the_mean_of_the_local_ones() -> None:
    course = run(methods.local_sgd(every=4), 9)
    assert course.rounds == [4, 8]
    for start in (0, 4):
        mean = locally(course.before[0][start], range(start, start + 4)).mean(0)
        close(course.before[0][start + 4], mean)


def words() -> float:
    """Bytes of what ranks agree on in a round: flags, a learning rate."""
    one, two = (run(methods.local_sgd(every=1), rounds).sent for rounds in (1, 2))
    return two - one - ring(1)


def started() -> float:
    """Bytes of what ranks compare before the first round: whether they set out from one model."""
    return run(methods.local_sgd(every=1), 1).sent - ring(1) - words()


def test_it_sends_a_model_per_round() -> None:
    once, extra = started(), words()
    assert 0 <= extra < 40
    assert 0 < once < 40
    for every in (1, 3, 12):
        assert run(methods.local_sgd(every=every)).sent == once + 12 // every * (ring(1) + extra)


def test_momenta_are_averaged_if_asked() -> None:
    both = run(methods.pr_sgd(every=4), 8, SGDS["heavy ball"])
    models = run(methods.local_sgd(every=4), 8, SGDS["heavy ball"])
    assert spread(momenta(both)) == spread(both.models) == spread(models.models) == 0
    assert spread(momenta(models)) > 0.1
    asked = run(methods.local_sgd(every=4, moments="mean"), 8, SGDS["heavy ball"])
    assert torch.equal(asked.models, both.models)
    names = len('["x|momentum_buffer"]')  # which moments there are, to each of the others
    assert both.sent == models.sent + ring(2) + 2 * (WORKERS - 1) * names


class Normed(nn.Module):
    """BatchNorm alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=0.5)


@pytest.mark.parametrize("buffers", ["leave", "mean"])
@pytest.mark.parametrize("make", [methods.local_sgd, methods.slowmo, methods.qsparse_local_sgd])
def test_buffers_are_averaged_or_left(make: Callable[..., tw.Method], buffers: str) -> None:
    data = [vector(24, seed=rank).view(8, 3) + rank for rank in range(2)]

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        assert isinstance(model, Normed)
        return (model.norm(data[rank]) ** 3).mean()  # type: ignore[no-any-return]

    done = simulate(make(every=2, buffers=buffers), Problem(Normed, loss), 2, steps=4)
    held = [dict(model.named_buffers()) for model in done.models]
    own = [(1 - 0.5**4) * rows.mean(0) for rows in data]  # four halves of the way from 0 to a rank's own mean
    due = own if buffers == "leave" else [(own[0] + own[1]) / 2] * 2
    for found, mean in zip(held, due, strict=True):
        close(found["norm.running_mean"], mean)
        assert int(found["norm.num_batches_tracked"]) == 4
    assert torch.equal(held[0]["norm.running_var"], held[1]["norm.running_var"]) == (buffers == "mean")


# One round, and rounds of an epoch


def test_one_shot_averages_in_the_end() -> None:
    course = run(methods.one_shot())
    assert course.rounds == []
    mean = locally(torch.zeros(D), range(12)).mean(0)
    for x in course.models:
        close(x, mean)
    assert [one["outer_rounds"] for one in course.done.stats] == [1] * WORKERS
    assert course.sent == run(methods.local_sgd(every=1), 1).sent


def test_parameter_mixing_is_local_sgd_by_epochs() -> None:
    mixed = run(methods.parameter_mixing(every=4))
    assert torch.equal(mixed.models, run(methods.local_sgd(every=4)).models)
    assert mixed.done.stats[0]["outer_rounds"] == 3


# Periods that change


def test_post_local_sgd_switches() -> None:
    start, every, steps = 6, 3, 12
    course = run(methods.post_local_sgd(start=start, every=every), steps, SGDS["nesterov"])
    in_step = run(methods.sgd(), steps, SGDS["nesterov"])
    assert course.rounds == [1, 2, 3, 4, 5, 6, 9]  # and once more in the end
    for t in range(start + 1):
        close(course.before[0][t], in_step.before[0][t])
    assert spread(course.models) == 0
    before = run(methods.post_local_sgd(start=start, every=every), start).sent
    assert course.sent - before == (before - started()) / every  # six steps each
    assert spread(momenta(run(methods.post_local_sgd(start=6), 6, SGDS["nesterov"]))) > 0.1
    shared = run(methods.post_local_sgd(start=6, moments="mean"), 6, SGDS["nesterov"])
    assert spread(momenta(shared)) == 0


def test_rounds_of_ada_lupa_grow() -> None:
    """tau_i = (1 + alpha i) tau_0: E = 4 rounds of T = 20 steps, from tau_0 = 2."""
    alpha = 2 * (20 / 2 - 4) / (4 * 3)
    taus = [2, 4, 6, 8]
    assert [Growing(alpha).steps(Seen(2, i - 1, 0, LR, LR, 0.0, 0.0)) for i in range(1, 4)] == taus[1:]
    course = run(methods.ada_lupa(every=2, alpha=alpha), 21)
    assert course.rounds == list(accumulate(taus))
    assert [one["outer_rounds"] for one in course.done.stats] == [4] * WORKERS


def test_rounds_of_adacomm_shrink_with_the_loss_of_all_ranks() -> None:
    """By hand; every rank is told another loss, and all take the same rounds."""
    lr = {0: 0.2, 1: 0.05}

    def at(step: int) -> float:
        return lr[int(step >= 17)]

    anchor, step, tau, ends, first = torch.zeros(D), 0, 8, [], math.nan
    while step + tau < 30:
        told, some = [], [anchor.clone() for _ in range(WORKERS)]
        for t in range(step, step + tau):
            for rank in range(WORKERS):
                told.append(float(loss_of(some[rank], rank, t)))
                some[rank] = some[rank] - at(t) * grad_of(some[rank], rank, t)
        step, anchor, loss = step + tau, torch.stack(some).mean(0), sum(told) / len(told)
        first = loss if math.isnan(first) else first
        tau = math.ceil(8 * math.sqrt(0.2 / at(step - 1) * loss / first))
        ends.append(step)
    course = run(methods.adacomm(every=8), 30, lr=at)
    assert course.rounds == ends
    assert len({b - a for a, b in pairwise(ends)}) > 1  # the period did change
    close(course.before[2][ends[-1]], anchor)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
def test_a_loss_that_says_nothing_leaves_the_period(bad: float) -> None:
    assert Shrinking().steps(Seen(8, 1, 9, LR, LR, bad, 2.0)) == 8
    assert Shrinking().steps(Seen(8, 1, 9, LR, LR, 1.0, bad)) == 8
    assert Shrinking().steps(Seen(8, 1, 9, 0.0, LR, 1.0, 2.0)) == 8
    assert Shrinking().steps(Seen(8, 1, 9, LR, LR, 0.5, 2.0)) == 4


# Compressed rounds


@pytest.mark.parametrize(
    "exact",
    [
        methods.pqasgd(every=3, compressor="identity"),
        methods.qsparse_local_sgd(every=3, ratio=1.0, compressor="identity"),
        methods.slowmo(every=3, alpha=1.0, beta=0.0),
        methods.bmuf(every=3, zeta=1.0, eta_b=0.0),
    ],
    ids=lambda method: method.id,
)
def test_what_loses_nothing_is_local_sgd(exact: tw.Method) -> None:
    local = run(methods.local_sgd(every=3), make=SGDS["nesterov"]).models
    close(run(exact, make=SGDS["nesterov"]).models, local)


def test_pqasgd_is_right_on_average() -> None:
    """z-test of every element over 200 rounds; the noise of each is another."""
    ways = [vector(64, seed=rank) for rank in range(2)]
    world = World(methods.pqasgd().exchange, Layout.flat(64), 2)
    drawn = torch.stack([world.step(ways) for _ in range(200)]).double()
    due = torch.stack(ways).double().mean(0)
    z = (drawn.mean(0) - due) / (drawn.std(0) / math.sqrt(200) + 1e-9)
    assert float(z.abs().max()) < 4.5
    assert float(drawn.std(0).mean()) > 0.1  # it does round


def test_pqasgd_wants_no_bias() -> None:
    with pytest.raises(ValueError, match=r"scaled-sign is biased; write pqasgd\(compressor='qsgd:bits=2'\)"):
        methods.pqasgd(compressor="scaled-sign")


def test_bytes_of_compressed_rounds() -> None:
    """Each payload to three others, and what ranks agree on in a round."""
    once, extra = started(), words()
    for method, body in ((methods.pqasgd(), 4 + 2), (methods.qsparse_local_sgd(ratio=0.5, indices="packed"), None)):
        compressor = method.exchange.channels[0].compressor
        size = compressor.nbytes(Layout.flat(D))
        assert body is None or size == body  # a scale, and six fields of two bits
        for rounds in (1, 2):
            assert run(method, 8 * rounds).sent == once + rounds * (extra + (WORKERS - 1) * (HEADER.size + size))


def test_what_qsparse_sends_and_keeps_is_the_way_that_the_rank_went() -> None:
    exchange = methods.qsparse_local_sgd(ratio=0.1).exchange
    compressor, layout = exchange.channels[0].compressor, Layout.flat(200)
    world, sent, gone = World(exchange, layout, 2), torch.zeros(200), torch.zeros(200)
    for step in range(6):
        ways = [vector(200, seed=10 * step + rank) for rank in range(2)]
        before = [state["send.residual"].clone() for state in world.states]
        keys = [tw.Key(seed=1, step=step, rank=rank) for rank in range(2)]
        v = [m + way for m, way in zip(before, ways, strict=True)]
        wires = [compressor.encode(one, layout, key) for one, key in zip(v, keys, strict=True)]
        q = [compressor.decode(wire, layout, key=key) for wire, key in zip(wires, keys, strict=True)]
        out = world.step(ways)
        for rank, state in enumerate(world.states):
            assert torch.equal(state["send.residual"], before[rank] + (ways[rank] - q[rank]))
            assert int((q[rank] != 0).sum()) <= 20
        close(out, (q[0] + q[1]) / 2)
        sent, gone = sent + out, gone + (ways[0] + ways[1]) / 2
    torch.testing.assert_close(sent + world.mean("send.residual"), gone, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "steps", "words"),
    [
        (
            "diloco:every=5",
            100,
            "are 20 rounds of 5, and the outer momentum needs about 50 before it helps; take 250",
        ),
        ("diloco:every=5", 100, "rounds of 2, or a plain mean: local-sgd:every=5"),
        ("diloco:every=5", 40, "take 250 steps, or a plain mean"),
        ("diloco:every=5", 250, ""),
        ("diloco:every=5,outer_momentum=0.5", 50, ""),
        ("diloco:every=5,outer_momentum=0.0", 5, ""),
        ("slowmo:every=5,beta=0.9", 100, "are 20 rounds of 5"),
        ("sparse-loco:every=5", 5, ""),
        ("local-sgd:every=5", 5, ""),
        ("sgd", 5, ""),
    ],
)
def test_an_outer_momentum_says_how_many_rounds_it_needs(method: str, steps: int, words: str) -> None:
    sync = tw.method(method).sync
    told = sync.of.too_few_rounds(steps, sync.every)
    assert words in told if words else told == ""


def test_a_simulation_with_few_rounds_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(logging.getLogger("thinwire"), "warning", lambda text, *words: heard.append(text % words))
    tw.simulate(tw.methods.diloco(every=1), "digits", workers=2, steps=2)
    tw.simulate(tw.methods.local_sgd(every=1), "digits", workers=2, steps=2)
    assert len(heard) == 1
    assert "diloco:every=1: 2 steps are 2 rounds of 1" in heard[0]
