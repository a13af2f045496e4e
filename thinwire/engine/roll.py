"""Roll: what the ranks of a crew tell each other before a round, and what follows from it.

A rank has a *lineage*, a name for the rounds that made its anchor: equal lineages mean equal anchors, bit for bit. A
rank that has just come has none. The lineage that has taken the most rounds goes on; of several, that of the most
ranks. Ranks of other lineages were left out of a round, or took one that the others gave up; they take over the state
of a rank that goes on, and count nothing in this round.

A rank that has all it needs for a round, and does not know whether others have taken it, speaks of the lineage that
the round makes, as *prepared*: if nobody has taken it, or another instead, it takes the round now.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, final

from thinwire.core.comm import to_bytes, to_tensor

if TYPE_CHECKING:
    from thinwire.core.comm import Comm


@final
@dataclass(frozen=True)
class Said:
    """What one rank says."""

    lineage: str  # empty where it has just come
    rounds: int
    prepared: bool  # whether it has not taken the last of them yet
    due: bool  # whether it has taken local steps since, and has a way to send
    samples: int  # seen since the last round; -1 if nobody told it
    nonce: str
    fields: Mapping[str, int]  # checksums of what must be the same on all


@final
@dataclass(frozen=True)
class Roll:
    """What everybody said, by rank; all ranks make the same of it."""

    said: Sequence[Said]

    @property
    def leader(self) -> int:
        """The first rank of the lineage that goes on."""
        ranks = Counter(one.lineage for one in self.said)
        taken = {one.lineage for one in self.said if not one.prepared}
        order = [
            (one.rounds, one.lineage in taken, ranks[one.lineage], not one.prepared, one.due, -rank)
            if one.lineage
            else (-1, False, 0, False, False, -rank)
            for rank, one in enumerate(self.said)
        ]
        return -max(order)[-1]

    @property
    def holders(self) -> list[int]:
        """The ranks of that lineage, as far as the leader: if all have just come, one of them."""
        first = self.said[self.leader]
        here = first.lineage, first.prepared, first.due
        equal = [rank for rank, one in enumerate(self.said) if (one.lineage, one.prepared, one.due) == here]
        return equal if first.lineage else equal[:1]

    @property
    def newcomers(self) -> list[int]:
        """All others."""
        return [rank for rank in range(len(self.said)) if rank not in self.holders]

    def giver(self, newcomer: int) -> int:
        """From whom a newcomer gets its state."""
        return self.holders[self.newcomers.index(newcomer) % len(self.holders)]

    def completes(self, rank: int) -> bool:
        """Whether a rank that is prepared takes its round now: nobody has taken it who could hand it on."""
        return rank in self.holders and self.said[rank].prepared

    @property
    def due(self) -> bool:
        """Whether there is a round: not where all have just come, or have one to complete."""
        return self.said[self.leader].due

    @property
    def lineage(self) -> str:
        """The name of the state that all will have."""
        if self.said[self.leader].lineage and not self.due:
            return self.said[self.leader].lineage
        text = self.said[self.leader].lineage + "".join(one.nonce for one in self.said)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def weight(self, rank: int) -> float:
        """The factor of a rank's way, by which the mean over ranks becomes the mean over samples: n s_i / sum_j s_j.

        It is exactly 1 where all have seen equally many. A newcomer has no way.
        """
        samples = [one.samples if rank in self.holders else 0 for rank, one in enumerate(self.said)]
        told = [one >= 0 for one in samples if one]
        if told and not all(told):
            if any(told):
                who = ", ".join(str(rank) for rank, one in enumerate(samples) if one < 0)
                raise ValueError(
                    f"some ranks said how many samples they have seen, and {who} did not; "
                    "write wire.samples(len(batch)) before every optimizer.step()"
                )
            samples = [1 if one else 0 for one in samples]
        if not any(samples):  # nobody has seen any
            samples = [int(rank in self.holders) for rank in range(len(self.said))]
        return len(samples) * samples[rank] / sum(samples)

    def differs(self, rank: int) -> str:
        """In which field a rank differs from the leader; empty if in none."""
        here, there = self.said[rank].fields, self.said[self.leader].fields
        return next((name for name in there if here.get(name) != there[name]), "")


async def call(comm: Comm, mine: Said) -> Roll:
    """Tell everybody, and hear everybody."""
    said = await comm.all_gather(to_tensor(json.dumps(asdict(mine)).encode()))
    return Roll([Said(**json.loads(to_bytes(one))) for one in said])


async def ballot(comm: Comm) -> None:
    """Return once every rank has got this far; PeerError if one has not, and then nobody knows how far it got."""
    await comm.all_gather(to_tensor(b"\1"), equal=True)
