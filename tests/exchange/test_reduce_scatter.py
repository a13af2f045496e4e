"""The reduce-scatter on four ranks of the virtual driver: sums, noise, residuals, bytes and refusals."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from battery import vector
from torch import Tensor

from thinwire import Comm, Context, Key, Layout, PayloadError, run
from thinwire.compressors import (
    Blockwise8,
    Cast,
    Compressor,
    Eden,
    Identity,
    IntBlock,
    Qsgd,
    RandomK,
    Rotated,
    ScaledSign,
    Sign,
    TernGrad,
    TopK,
    Wangni,
)
from thinwire.exchange import ReduceScatter
from thinwire.memory.kept import Kept

RANKS = 4
LAYOUT = Layout(("w", "b"), ((60, 9), (33,)))
CPU = torch.device("cpu")


def row(step: int, sender: int, owner: int) -> Tensor:
    return vector(LAYOUT.numel, seed=100 * step + 10 * sender + owner)


async def rounds(comm: Comm, how: ReduceScatter, steps: range, *, seed: int = 0, vary: bool = True) -> list[Any]:
    """The sum of the results of `steps` rounds, what is held back, and the bytes that the plan says."""
    kept = how.kept(LAYOUT, comm.size, CPU)
    total = torch.zeros(LAYOUT.numel)
    for step in steps:
        rows = [row(step if vary else 0, comm.rank, owner) for owner in range(comm.size)]
        ctx = Context(comm, LAYOUT, Key(seed, step, comm.rank))
        total += await how(rows, kept, LAYOUT.names, ctx, 0.25)
    return [total, kept]


def truth(owner: int, steps: range, *, vary: bool = True) -> Tensor:
    return sum((row(s if vary else 0, r, owner) for s in steps for r in range(RANKS)), torch.zeros(())) / RANKS


def held_back(kepts: list[Kept], owner: int) -> Tensor:
    """The sum over senders of what they hold back of one owner's row."""
    rows = [k.read(owner - (owner > r), LAYOUT.names) for r, k in enumerate(kepts) if r != owner]
    return torch.stack(rows).sum(0)


def test_without_compression_it_is_the_sum() -> None:
    done = run(lambda comm: rounds(comm, ReduceScatter(Identity()), range(2)), RANKS)
    for owner, (total, kept) in enumerate(done.results):
        assert kept is None
        assert (total - truth(owner, range(2))).abs().max() < 1e-5
    for sent in done.traffic:  # a rank's own row stays where it is
        assert sent.messages == 2 * (RANKS - 1)
        assert sent.bytes == sent.messages * ReduceScatter(Identity()).nbytes(LAYOUT)


def test_an_unbiased_compressor_is_right_on_average() -> None:
    """Over 40 rounds with noise of their own; rounding to nearest stays where it is."""
    many = range(40)
    for rounding, right in (("stochastic", True), ("nearest", False)):
        how = ReduceScatter(IntBlock(bits=2, block=64, rounding=rounding))  # type: ignore[arg-type]
        found = run(lambda comm, how=how: rounds(comm, how, many, vary=False), RANKS).results  # type: ignore[misc]
        expected = [truth(owner, many, vary=False) / 40 for owner in range(RANKS)]
        errors = torch.stack([total / 40 - true for (total, _), true in zip(found, expected, strict=True)])
        one = run(lambda comm, how=how: rounds(comm, how, range(1)), RANKS).results  # type: ignore[misc]
        once = torch.stack([total - truth(owner, range(1)) for owner, (total, _) in enumerate(one)])
        assert (errors.norm() < 1.3 * once.norm() / 40**0.5) == right


@pytest.mark.parametrize(("residual", "close"), [("float32", 2e-5), ("int8", 0.15)])
def test_what_was_delivered_and_what_is_held_back_is_what_was_sent(residual: Any, close: float) -> None:
    """Exactly with a float residual; that in 8 bits loses a 127th of a residual at most, at random, in each step."""
    how = ReduceScatter(IntBlock(bits=3, block=64), residual=residual)
    found = run(lambda comm: rounds(comm, how, range(20)), RANKS).results
    kepts = [kept for _, kept in found]
    for owner, (total, _) in enumerate(found):
        gap = total + held_back(kepts, owner) / RANKS - truth(owner, range(20))
        assert gap.abs().max() < close
        assert (total - truth(owner, range(20))).abs().max() > close  # something is held back


@pytest.mark.parametrize(
    "compressor",
    [
        Cast(),
        TopK(ratio=0.1, indices="packed"),
        Rotated(IntBlock(bits=4)),
        Qsgd(bits=4),
        RandomK(ratio=0.5),
        Eden(bits=4),
        Blockwise8(),
        ScaledSign(),
    ],
    ids=lambda one: one.name,
)
def test_every_kind_of_compressor_delivers_what_it_decodes(compressor: Compressor) -> None:
    """The sum of what each sender's payload decodes to by itself, and the owner's row as it is."""
    found = run(lambda comm: rounds(comm, ReduceScatter(compressor), range(1)), RANKS).results
    for owner, (total, _) in enumerate(found):
        expected = row(0, owner, owner)
        for sender in {*range(RANKS)} - {owner}:
            key = Key(rank=sender, offset=owner * 1024)
            expected = expected + compressor.decode(
                compressor.encode(row(0, sender, owner), LAYOUT, key), LAYOUT, key=key
            )
        assert (total - expected / RANKS).abs().max() < 1e-5


async def descend(comm: Comm, how: ReduceScatter) -> float:
    """|x - mean c|^2 after 40 steps of gradients x - c_i, where each rank owns a quarter of x."""
    kept = how.kept(LAYOUT, comm.size, CPU)
    goals = [[3 * row(0, r, owner) for owner in range(comm.size)] for r in range(comm.size)]
    x = [torch.zeros(LAYOUT.numel) for _ in range(comm.size)]
    for step in range(40):
        rows = [at - goal for at, goal in zip(x, goals[comm.rank], strict=True)]
        ctx = Context(comm, LAYOUT, Key(0, step, comm.rank))
        mean = await how(rows, kept, LAYOUT.names, ctx, 1 / comm.size)
        x = await comm.all_gather(x[comm.rank] - 0.1 * mean, equal=True)
    best = torch.stack([torch.stack(g) for g in goals]).mean(0)
    return float((torch.stack(x) - best).square().mean())


def test_a_residual_in_eight_bits_is_nearly_as_good_as_an_exact_one() -> None:
    """Gradients of single ranks do not vanish at the optimum: without residuals, rounding moves it."""
    coarse = IntBlock(bits=2, block=64)
    far = {
        kind: run(lambda comm, kind=kind: descend(comm, ReduceScatter(coarse, residual=kind)), RANKS).results[0]  # type: ignore[misc]
        for kind in ("none", "int8", "float32")
    }
    assert far["int8"] < 0.1 * far["none"], far
    assert far["int8"] < 1.5 * far["float32"], far


def test_a_small_gradient_beside_a_large_one_adds_up_in_eight_bits() -> None:
    """It is below half a step of the residual's own grid, where rounding to nearest would lose it for ever."""
    how, layout, steps = ReduceScatter(IntBlock(bits=4, block=64), residual="int8"), Layout.flat(64), 60
    x = torch.full((64,), 1e-4)
    x[0] = 1.0

    async def program(comm: Comm) -> Tensor:
        kept = how.kept(layout, comm.size, CPU)
        assert kept is not None
        for step in range(steps):
            x[1] = 0.05 * (step % 3 - 1)  # its residual sets the scale
            await how([x, x], kept, ("",), Context(comm, layout, Key(0, step, comm.rank)), 0.5)
        return kept.read(0, ("",))

    held = run(program, 2).results[0]
    assert held[2:].mean() == pytest.approx(steps * 1e-4, rel=0.2)


def test_a_damaged_or_foreign_payload_is_refused() -> None:
    how = ReduceScatter(IntBlock(bits=4))

    async def program(comm: Comm, flip: int) -> str:
        rows = [row(0, comm.rank, owner) for owner in range(comm.size)]
        ctx = Context(comm, LAYOUT, Key(0, 3 + (flip == 0 and comm.rank == 1), comm.rank))
        going = how(rows, None, LAYOUT.names, ctx, 1.0)
        arrived = await going.send(None)
        if comm.rank == 1 and flip:
            arrived[2] = arrived[2].clone()
            arrived[2][flip] ^= 1
        try:
            going.send(arrived)
        except PayloadError as error:
            return str(error)
        except StopIteration:
            return ""
        raise AssertionError

    for flip in (6, 40, 200):
        found = run(partial(program, flip=flip), 4).results
        assert [bool(said) for said in found] == [False, True, False, False]
    late = run(partial(program, flip=0), 4).results
    assert "payload of step 4, bucket 0, hop 0 arrived in step 3" in late[0]


def test_a_row_that_is_not_finite_leaves_the_residual_as_it_was() -> None:
    how = ReduceScatter(IntBlock(bits=4, block=64), residual="float32")

    async def program(comm: Comm) -> tuple[Tensor, bool]:
        kept = how.kept(LAYOUT, comm.size, CPU)
        assert kept is not None
        for step in range(2):
            rows = [row(step, comm.rank, owner) for owner in range(comm.size)]
            before = [kept.read(r, LAYOUT.names).clone() for r in range(kept.rows)]
            if step and comm.rank == 2:
                rows[1] = torch.full_like(rows[1], torch.inf)
            out = await how(rows, kept, LAYOUT.names, Context(comm, LAYOUT, Key(0, step, comm.rank)), 0.25)
        return out, torch.equal(before[1], kept.read(1, LAYOUT.names))

    found = run(program, RANKS).results
    assert [bool(out.isnan().any()) for out, _ in found] == [False, True, False, False]
    assert found[2][1]  # rank 2's second row is that of owner 1


@pytest.mark.parametrize(
    ("compressor", "residual", "says"),
    [
        (Sign(), "none", "sends votes"),
        (TernGrad(), "none", "works on whole tensors"),
        (Wangni(), "none", "size is known only when they are made"),
        (Identity(), "int8", "write residual='none'"),
        (RandomK(), "float32", "grows from step to step"),
        (IntBlock(), "int4", "write residual='none' or 'int8' or 'float32'"),
    ],
)
def test_what_it_refuses(compressor: Any, residual: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ReduceScatter(compressor, residual=residual)


def test_what_is_no_compressor_is_refused_and_what_is_one_is_a_value() -> None:
    with pytest.raises(TypeError, match=r"write ReduceScatter\(thinwire.compressors.IntBlock"):
        ReduceScatter("int")  # type: ignore[arg-type]
    how = ReduceScatter(Qsgd(bits=4), residual="int8", checksum=False)
    assert ReduceScatter.from_json(how.to_json()) == how
    assert eval(repr(how)) == how
