"""Key: where the noise of one encode comes from, in the words that Philox takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

LIMITS = {"seed": 1 << 64, "step": 1 << 32, "rank": 1 << 24, "bucket": 1 << 32, "hop": 1 << 8, "offset": 1 << 35}


@dataclass(frozen=True)
class Key:
    """Where the noise of one encode comes from. The same key gives the same bits on every machine.

    Philox sees `seed` as its key and (offset, bucket, step, rank and hop) as its counter, so that no two encodes
    of a run share noise as long as they differ in one field.

    >>> Key(seed=1, step=7, rank=3).fold(hop=1).words()
    [1, 0, 0, 0, 7, 16777219]
    """

    seed: int = 0
    step: int = 0
    rank: int = 0  # below 2^24
    bucket: int = 0
    hop: int = 0  # which lossy hop of an exchange, below 256
    offset: int = 0  # first element, a multiple of 512; for buckets sent in chunks

    def __post_init__(self) -> None:
        small = 0 <= self.rank < 1 << 24 and 0 <= self.hop < 1 << 8
        words = 0 <= self.step < 1 << 32 and 0 <= self.bucket < 1 << 32 and 0 <= self.seed < 1 << 64
        if not (small and words and 0 <= self.offset < 1 << 35 and self.offset % 512 == 0):
            self._refuse()  # a separate method, since keys are made many times per step

    def _refuse(self) -> None:
        for value, (name, limit) in zip(
            (self.seed, self.step, self.rank, self.bucket, self.hop, self.offset), LIMITS.items(), strict=True
        ):
            if not 0 <= value < limit:
                raise ValueError(
                    f"Key({name}={value}) is out of range; write 0 <= {name} < 2^{limit.bit_length() - 1}"
                )
        raise ValueError(f"Key(offset={self.offset}) must be a multiple of 512, the size of a tile")

    def fold(self, **changes: int) -> Key:
        """The same key with some fields replaced."""
        return replace(self, **changes)

    def words(self) -> list[int]:
        """Two key words and four counter words of Philox."""
        seed, step, rank, bucket = int(self.seed), int(self.step), int(self.rank), int(self.bucket)
        return [seed & 0xFFFFFFFF, seed >> 32, self.offset // 8, bucket, step, rank | self.hop << 24]
