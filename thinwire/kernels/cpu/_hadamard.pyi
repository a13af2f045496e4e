"""Every address is that of a contiguous tensor, which the caller keeps alive."""

def hadamard(x: int, blocks: int, block: int, threads: int, vectors: int) -> None: ...
def rotate(
    x: int, n: int, block: int, last: int, words: list[list[int]], factor: float, out: int, threads: int, vectors: int
) -> None: ...
def unrotate_add(
    r: int,
    n: int,
    block: int,
    last: int,
    words: list[list[int]],
    unit: float,
    weight: float,
    out: int,
    threads: int,
    vectors: int,
) -> None: ...
def encode(
    x: int,
    n: int,
    block: int,
    last: int,
    words: list[list[int]],
    factor: float,
    share: float,
    biased: bool,
    high: list[float],
    high_bits: int,
    low: list[float],
    low_bits: int,
    codes: int,
    scales: int,
    threads: int,
    vectors: int,
) -> None: ...
def decode_add(
    codes: int,
    n: int,
    block: int,
    last: int,
    words: list[list[int]],
    share: float,
    high: list[float],
    high_bits: int,
    low: list[float],
    low_bits: int,
    scales: int,
    weight: float,
    out: int,
    threads: int,
    vectors: int,
) -> None: ...
def peak(x: int, n: int, threads: int, vectors: int) -> float: ...
