"""Tables about the checksum: what it costs, and what damage it does not find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thinwire.lab import bench_checksum
from thinwire.lab.markdown import table, where
from thinwire.lab.records import load, read

BENCH = "thinwire bench kernels --repeats 41"


def checksum(data: Path) -> str:
    """What the checksum adds to an encode, to a decode, and to both together; by the 20% quantiles of the times."""
    every = load(data / "kernels.csv")
    rows = [r for r in every if (r["threads"], r["backend"]) == ("1", every[0]["backend"])]
    times = {(r["method"], r["kernel"]): float(r["ms_p20"]) for r in rows}
    passes, body = ("encode", "decode_add"), []
    for method in (f"qsgd:bits={b}" for b in (1, 2, 4, 8)):
        plain = [times[method, k] for k in passes]
        checked = [t for k in passes for (m, name), t in times.items() if m == method and name.startswith(f"{k}+")]
        pairs = [*zip(plain, checked, strict=True), (sum(plain), sum(checked))]
        body.append([f"`{method}`", *(f"{100 * (b / a - 1):+.0f}%" for a, b in pairs)])
    return table(["method", "encode", "decode_add", "both"], body) + where(rows[0], BENCH)


def detection(data: Path) -> str:
    """Damaged payloads that the checksum takes for whole, and that CRC-32C would."""
    rows = read(data / "checksum.csv")
    body = [
        [r["kind"], f"{r['changed']:,}", str(r["sum_missed"]), str(r["crc32c_missed"])]
        for r in bench_checksum.summary(rows)
    ]
    head = ["damage", "payloads", "missed by the sum", "missed by CRC-32C"]
    return table(head, body) + where(rows[0], "thinwire bench checksum")


TABLES: dict[str, Callable[[Path], str]] = {"checksum": checksum, "detection": detection}
