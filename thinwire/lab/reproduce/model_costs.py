"""What encoding and decoding take on a GPU: measured on an H200, scaled to others by the rate of their memory.

`PASSES` are the medians, in milliseconds, of passes over 2^26 elements in benchmarks/data/kernels-cuda.csv. All of
them are bound by memory, or, like rANS, were not measured elsewhere; on a card with a tenth of the rate they are
taken to last ten times as long. Rates of others are those of NVIDIA's data sheets; that of an H200 is that of a
measured copy, which favours the others.
"""

from __future__ import annotations

from thinwire.sim import Costs, Pass

ELEMENTS = 1 << 26
PASSES: dict[tuple[str, str], float] = {
    ("encode", "qsgd:bits=4"): 0.0803,
    ("decode_add", "qsgd:bits=4"): 0.1428,
    ("encode", "qsgd:bits=8"): 0.0859,
    ("decode_add", "qsgd:bits=8"): 0.1489,
    ("encode_ef", "qsgd:bits=4,norm=l2"): 0.2011,
    ("decode_add", "qsgd:bits=4,norm=l2"): 0.1425,
    ("encode_ef", "scaled-sign"): 0.3834,
    ("decode_add", "scaled-sign"): 0.1356,
    ("rans_encode", "rans:levels=4,norm=l2"): 0.2816,
    ("rans_decode", "rans:levels=4,norm=l2"): 0.1984,
}
MEMORY = {"H200": 4150.0, "P40": 346.0, "K80": 240.0}  # GB/s; a K80 has two processors of 240 GB/s each
QSGD = {
    bits: ((("encode", f"qsgd:bits={bits}"),), (("decode_add", f"qsgd:bits={bits}"),)) for bits in (4, 8)
}  # passes of an encode, and of a decode
ECQ = (
    (("encode_ef", "qsgd:bits=4,norm=l2"), ("rans_encode", "rans:levels=4,norm=l2")),
    (("decode_add", "qsgd:bits=4,norm=l2"), ("rans_decode", "rans:levels=4,norm=l2")),
)
SIGN = ((("encode_ef", "scaled-sign"),), (("decode_add", "scaled-sign"),))
Passes = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]


def costs(passes: Passes | None, card: str) -> Costs:
    """Of a method with these passes on this card; None: it makes none that count.

    >>> f"{costs(QSGD[4], 'K80').usual.encode * 1e12:.1f} ps per element"
    '20.7 ps per element'
    """
    if passes is None:
        return Costs()
    encode, decode = (sum(PASSES[name] for name in some) for some in passes)
    slower = MEMORY["H200"] / MEMORY[card] * 1e-3 / ELEMENTS
    return Costs(Pass(encode * slower, decode * slower))
