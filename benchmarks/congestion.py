"""A step between hosts at 100 Mbit/s under two of TCP's ways to control congestion, as root.

python benchmarks/congestion.py benchmarks/data/congestion.csv
"""

from __future__ import annotations

import sys
from pathlib import Path

from thinwire.lab import records
from thinwire.lab.bench_hosts import FREE, Job, bench
from thinwire.lab.launch import launch
from thinwire.lab.net import Network

HOSTS, JOB = 8, Job(["int8", "qsgd:bits=4", "ecq-sgd"], 4 << 20, "100mbit", turns=3, budget=24.0)
ALGORITHMS = ("cubic", "bbr")


if __name__ == "__main__":
    rows: list[records.Row] = []
    for algorithm in ALGORITHMS:
        with Network(HOSTS, FREE, congestion=algorithm) as network:
            rows += launch(bench, HOSTS, JOB, timeout=3600.0, hear=lambda news: None, hosts=network)[0]
    for row in rows:
        low, middle, high = (row[name] for name in ("step_ms_p20", "step_ms", "step_ms_p80"))
        print(f"{row['congestion']:6} {row['method']:18} {middle:7.0f} ms, {low:.0f} to {high:.0f}")
    if len(sys.argv) > 1:
        records.save(Path(sys.argv[1]), rows)
