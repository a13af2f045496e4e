"""What follows from a roll call: who goes on, who takes over whose state, and what a way weighs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thinwire.engine.roll import Roll, Said


def said(lineage: str, rounds: int = 0, samples: int = -1, *, prepared: bool = False, **fields: int) -> Said:
    return Said(lineage, rounds, prepared, bool(lineage) and not prepared, samples, f"nonce of {lineage}", fields)


def test_all_have_just_come() -> None:
    roll = Roll([said(""), said(""), said("")])
    assert (roll.leader, roll.holders, roll.newcomers, roll.due) == (0, [0], [1, 2], False)
    assert [roll.giver(rank) for rank in roll.newcomers] == [0, 0]


def test_newcomers_are_shared_among_those_who_are_there() -> None:
    roll = Roll([said(""), said("a", 3), said(""), said("a", 3), said("")])
    assert (roll.holders, roll.newcomers, roll.due) == ([1, 3], [0, 2, 4], True)
    assert [roll.giver(rank) for rank in roll.newcomers] == [1, 3, 1]


def test_the_lineage_of_more_rounds_goes_on() -> None:
    """The two others were left out of a round."""
    roll = Roll([said("a", 3), said("a", 3), said("b", 4)])
    assert (roll.leader, roll.newcomers) == (2, [0, 1])


def test_of_two_lineages_that_of_more_ranks_goes_on() -> None:
    """The two others took the round again, without the one that had taken it first."""
    roll = Roll([said("b", 4), said("c", 4), said("c", 4)])
    assert (roll.leader, roll.newcomers) == (1, [0])


def test_who_is_prepared_completes_the_round_unless_somebody_has_taken_it() -> None:
    ready = said("b", 4, prepared=True)
    alone = Roll([said("a", 3), ready, ready, said("")])
    assert (alone.leader, alone.newcomers, alone.due, alone.lineage) == (1, [0, 3], False, "b")
    assert [alone.completes(rank) for rank in range(4)] == [False, True, True, False]
    beside = Roll([said("a", 3), ready, said("b", 4), ready])
    assert (beside.leader, beside.newcomers, beside.due) == (2, [0, 1, 3], True)
    assert not any(beside.completes(rank) for rank in range(4))
    late = Roll([ready, said("c", 4), ready])  # which had not been prepared, and took the round again
    assert (late.leader, late.newcomers, late.due) == (1, [0, 2], True)


def test_who_has_completed_a_round_and_gone_no_further_waits_for_no_other() -> None:
    done = replace(said("b", 4), due=False)
    roll = Roll([done, said(""), done])
    assert (roll.leader, roll.newcomers, roll.due, roll.lineage) == (0, [1], False, "b")
    beside = Roll([done, said("b", 4), done])
    assert (beside.leader, beside.newcomers, beside.due) == (1, [0, 2], True)


def test_every_round_has_a_lineage_of_its_own() -> None:
    first, again = Roll([said("a", 3), said("a", 3)]), Roll([said("a", 3), said("a", 3), said("")])
    assert first.lineage == Roll([said("a", 3), said("a", 3)]).lineage
    assert first.lineage != again.lineage


@pytest.mark.parametrize("samples", [-1, 0, 1, 48])
def test_equal_weights_are_exactly_one(samples: int) -> None:
    for ranks in (1, 2, 3, 7, 49):
        roll = Roll([said("a", 3, samples)] * ranks)
        assert [roll.weight(rank) for rank in range(ranks)] == [1.0] * ranks


def test_a_way_weighs_as_much_as_its_samples() -> None:
    roll = Roll([said("a", 3, 10), said("a", 3, 30), said("", 0, 99), said("a", 3, 0)])
    assert [roll.weight(rank) for rank in range(4)] == [1.0, 3.0, 0.0, 0.0]


def test_a_newcomer_weighs_nothing_where_nobody_counts_samples() -> None:
    roll = Roll([said("a", 3), said(""), said("a", 3), said("a", 3, 0)])
    assert [roll.weight(rank) for rank in range(4)] == [2.0, 0.0, 2.0, 0.0]


def test_samples_are_counted_by_all_or_by_none() -> None:
    roll = Roll([said("a", 3, 10), said("a", 3), said("a", 3, 0)])
    with pytest.raises(
        ValueError, match=r"and 1 did not; write wire.samples\(len\(batch\)\) before every optimizer.step\(\)"
    ):
        roll.weight(0)


def test_who_differs() -> None:
    roll = Roll([said("", 0, -1, method=2, plan=1), said("a", 3, -1, method=1, plan=1)])
    assert (roll.differs(0), roll.differs(1)) == ("method", "")
