def available() -> list[str]: ...
def encode(
    isa: str,
    spec: list[float],
    n: int,
    block: int,
    starts: int,
    count: int,
    words: list[int],
    x: int,
    dtype: int,
    e: int,
    alpha: float,
    beta: float,
    scales: int,
    given: bool,
    codes: int,
    summed: bool,
    first: int,
    threads: int,
    /,
) -> int: ...
def scales(
    isa: str,
    spec: list[float],
    n: int,
    block: int,
    starts: int,
    count: int,
    x: int,
    dtype: int,
    out: int,
    threads: int,
    /,
) -> None: ...
def decode_add(
    isa: str,
    spec: list[float],
    n: int,
    block: int,
    starts: int,
    count: int,
    scales: int,
    codes: int,
    out: int,
    weight: float,
    fresh: bool,
    threads: int,
    /,
) -> None: ...
def noise(isa: str, words: list[int], n: int, out: int, threads: int, /) -> None: ...
def pack(isa: str, codes: int, n: int, width: int, out: int, /) -> None: ...
def unpack(isa: str, packed: int, n: int, width: int, codes: int, /) -> None: ...
def total(isa: str, data: int, n: int, first: int, threads: int, /) -> int: ...
def seal(isa: str, data: int, n: int, header: bytes, tail: int, partial: int, threads: int, /) -> None: ...
def sealed(isa: str, data: int, n: int, threads: int, /) -> bool: ...
def copy(isa: str, x: int, n: int, out: int, threads: int, /) -> bool: ...
def difference(isa: str, a: int, b: int, n: int, out: int, again: int, threads: int, /) -> bool: ...
def fold(codes: int, n: int, /) -> None: ...
def unfold(codes: int, n: int, /) -> None: ...
