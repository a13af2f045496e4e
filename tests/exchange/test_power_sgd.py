"""PowerSGD: exact on low rank, power iteration over steps, what is lost is kept, states by parameter."""

from __future__ import annotations

import pytest
import torch
from lockstep import Quadratics
from sheet import gauss
from torch import Tensor

from thinwire import Key, Layout, kernels
from thinwire.comm import Comm
from thinwire.compressors import LowRank
from thinwire.compressors.low_rank import Piece, dot, draw, multiply, orthonormal, pieces
from thinwire.engine import pieces as states
from thinwire.engine.bucket import Bucket
from thinwire.engine.plan import Item, Parcel
from thinwire.exchange import AllReduce, PowerSgd
from thinwire.lab.world import World

LAYOUT = Layout(("conv", "bias", "fc", "tiny"), ((16, 3, 3, 3), (16,), (40, 60), (2, 3)))
FREE = [(432, 448), (2848, 2854)]  # bias and tiny: sent as they are


def grads(seed: int, n: int = 4) -> list[Tensor]:
    return [gauss(LAYOUT.numel, seed=100 * seed + r) for r in range(n)]


def test_low_rank_is_recovered_in_one_step() -> None:
    matrix = (gauss(50, 3) @ gauss(3, 70, seed=1)).reshape(-1)
    world = World(PowerSgd(rank=3), Layout(("m",), ((50, 70),)))
    out = world.step([matrix * (r + 1) for r in range(4)])
    assert (out - 2.5 * matrix).norm() < 1e-5 * matrix.norm()
    world = World(PowerSgd(rank=5), Layout(("m",), ((50, 70),)))  # two columns of P depend on the others
    assert (world.step([matrix] * 4) - matrix).norm() < 1e-5 * matrix.norm()
    assert (world.step([matrix] * 4) - matrix).norm() < 1e-5 * matrix.norm()


def test_warm_start_converges_to_the_best_approximation() -> None:
    """A fixed matrix without its residual: the sheet has .659, .465, .379 at step 5, best .3785 at step 10.

    Its matrix is not given; one with singular values exp(-j/4) has .37 for the best of rank 4.
    """
    u, v = torch.linalg.qr(gauss(60, 60)).Q, torch.linalg.qr(gauss(60, 60, seed=1)).Q
    matrix = (u * torch.exp(-torch.arange(60) / 4)) @ v
    lam = torch.linalg.svdvals(matrix.double())
    best = float(lam[4:].norm() / lam.norm())
    world, x = World(PowerSgd(rank=4), Layout(("m",), ((60, 60),)), n=2), matrix.reshape(-1)
    errors = []
    for _ in range(10):
        errors.append(float((world.step([x, x]) - x).norm() / x.norm()))
        for state in world.states:
            state["send.residual"].zero_()
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1.15 * best
    assert errors[4] < 1.02 * best
    assert errors[9] == pytest.approx(best, rel=2e-3)


def test_more_iterations_are_more_steps() -> None:
    x = gauss(60 * 60)
    errors = []
    for iterations in (1, 2, 4):
        world = World(PowerSgd(rank=4, iterations=iterations), Layout(("m",), ((60, 60),)))
        errors.append(float((world.step([x] * 4) - x).norm()))
        assert world.traffic[0].bytes == iterations * 2 * 3 * 4 * 4 * 120 // 4
    assert errors[0] > errors[1] > errors[2]


def test_the_mean_of_the_residuals_is_what_is_missing() -> None:
    """Sum of what was sent + mean residual = sum of the gradients' means, at every step and for every element."""
    world = World(PowerSgd(rank=2), LAYOUT)
    sent, given = torch.zeros(LAYOUT.numel), torch.zeros(LAYOUT.numel)
    for step in range(8):
        xs = grads(step)
        sent += world.step(xs)  # asserts that all ranks hold the same bits
        given += torch.stack(xs).mean(0)
        assert (sent + world.mean("send.residual") - given).abs().max() < 1e-4
        for low, high in FREE:
            assert (sent - given)[low:high].abs().max() < 1e-5
        warm = [world.states[r]["recv.warm"] for r in range(4)]
        assert all(torch.equal(warm[0], other) for other in warm)


def test_vectors_and_small_matrices_travel_as_they_are() -> None:
    assert [p.rank for p in pieces(LAYOUT, 2, 2.0)] == [2, 0, 2, 0]
    assert [p.rank for p in pieces(LAYOUT, 2, 6.0)] == [0, 0, 2, 0]
    world = World(PowerSgd(rank=2), LAYOUT)
    world.step(grads(0))
    floats = 2 * (16 + 27) + 16 + 2 * (40 + 60) + 6
    assert world.traffic[0].bytes == pytest.approx(2 * 3 / 4 * 4 * floats, abs=8)
    assert 4 * floats == LowRank(2).nbytes(LAYOUT)


def test_a_rescaled_learning_rate_rescales_the_residual() -> None:
    world = World(PowerSgd(), LAYOUT)
    world.step(grads(0))
    before, warm = world.mean("send.residual"), world.states[0]["recv.warm"].clone()
    world.rescale(0.5)
    assert torch.equal(world.mean("send.residual"), before * 0.5)
    assert torch.equal(world.states[0]["recv.warm"], warm)


def test_it_converges_where_the_ranks_gradients_differ() -> None:
    problem = Quadratics(n=4, d=64)
    world = World(PowerSgd(rank=1), Layout(("m",), ((8, 8),)))
    assert pieces(world.layout, 1, 2.0)[0].rank == 1
    assert problem.descend(world, 0.3 / problem.smooth, 300) < 1e-6


def test_tiny_and_huge_gradients() -> None:
    for scale in (1e-30, 1e25):
        world, plain = World(PowerSgd(), LAYOUT), World(PowerSgd(), LAYOUT)
        for step in range(3):
            got = world.step([x * scale for x in grads(step)])
            expected = plain.step(grads(step))
            assert (got / scale - expected).norm() < 1e-3 * expected.norm()


def test_orthonormal_in_a_fixed_order() -> None:
    p = orthonormal(gauss(33, 4))
    assert (p.T @ p - torch.eye(4, dtype=torch.float64)).abs().max() < 1e-14
    twice = orthonormal(gauss(33, 1).expand(33, 3))
    assert twice[:, 1:].abs().max() == 0
    a, b = gauss(100).double(), gauss(100, seed=1).double()
    assert dot(a, b).item() == pytest.approx(float(a @ b), rel=1e-12)
    assert torch.allclose(multiply(gauss(5, 3), gauss(7, 3)), gauss(5, 3) @ gauss(7, 3).T, atol=1e-5)


def buckets(exchange: PowerSgd | AllReduce, groups: list[list[int]]) -> list[Bucket]:
    items = [Item(name, shape, torch.device("cpu")) for name, shape in zip(LAYOUT.names, LAYOUT.shapes, strict=True)]
    parcels = [Parcel(tuple(items[i] for i in group), compressed=True) for group in groups]
    return [Bucket(i, parcel, exchange, Comm(0, 2), 2048 / 2**20) for i, parcel in enumerate(parcels)]


def test_the_engine_keeps_tensors_whole() -> None:
    assert [len(b.chunks) for b in buckets(AllReduce(), [[2, 0], [1, 3]])] == [6, 1]
    assert [len(b.chunks) for b in buckets(PowerSgd(), [[2, 0], [1, 3]])] == [1, 1]


def test_states_are_taken_up_under_another_plan() -> None:
    """Every parameter's residual and Q go where the parameter goes, and the next step has the same bits."""
    world = World(PowerSgd(), LAYOUT, n=1)
    for step in range(3):
        world.step(grads(step, 1))
    one, other = buckets(PowerSgd(), [[0, 1, 2, 3]]), buckets(PowerSgd(), [[2, 1], [3], [0]])
    for name, tensor in world.states[0].items():
        one[0].chunks[0].state[name].copy_(tensor)
    saved = {(p.where, p.start): p.data for p in states.pieces(Comm(0, 1), one)}
    for piece in states.pieces(Comm(0, 1), other):
        piece.data.copy_(saved[piece.where, piece.start])
    x = grads(9, 1)[0]
    expected, at = world.step([x]), dict(zip(LAYOUT.names, LAYOUT.offsets, strict=False))
    for bucket in other:
        spans = [(at[item.name], at[item.name] + item.numel) for item in bucket.items]
        part = World(PowerSgd(), bucket.layout, n=1)
        part.states[0].update(bucket.chunks[0].state)
        part.steps = 3
        got = part.step([torch.cat([x[low:high] for low, high in spans])])
        assert torch.equal(got, torch.cat([expected[low:high] for low, high in spans]))


@pytest.mark.parametrize("n", [100, 512, 700, 1300])
def test_a_drawn_matrix_is_a_part_of_the_noise_of_the_vector(n: int) -> None:
    key = Key(seed=5, step=2, rank=3, offset=1024)
    whole = (kernels.get("reference").noise(key.fold(rank=0), n) >> 8).float() * 2.0**-23 - 1.0
    for start in (0, 3, 511, 512, 600):
        for k in (5, 40, 90, 300):
            if start + 2 * k <= n:
                got = draw(key, Piece(start, n, 9, k, 2), n, torch.empty(0))
                assert torch.equal(got, whole[start : start + 2 * k].view(k, 2))


def test_low_rank_alone_projects() -> None:
    layout, x, c = Layout(("m",), ((40, 60),)), gauss(2400), LowRank(rank=3)
    out = c.decode(c.encode(x, layout, Key(seed=2)), layout, key=Key(seed=2))
    assert torch.linalg.matrix_rank(out.view(40, 60), atol=1e-3) == 3
    assert ((x - out) @ out).abs() < 1e-2  # what is left is orthogonal to what was sent
    assert 0.5 < (x - out).norm() / x.norm() < 1


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="write rank >= 1"):
        PowerSgd(rank=0)
    with pytest.raises(ValueError, match="least >= 1"):
        LowRank(least=0.5)
    with pytest.raises(ValueError, match="write 1 or more"):
        PowerSgd(iterations=0)
