"""The table of the fault campaign, from the rows of benchmarks/faults.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from thinwire.lab.markdown import table, where
from thinwire.lab.records import load

FILES = {
    "faults-16.csv": "python benchmarks/faults.py --kinds killed --trials 300",
    "faults.csv": "python benchmarks/faults.py --kinds stopped partition 'late names' saving 'full disk' state",
}
NAMES = {
    "killed": "a rank is killed (SIGKILL)",
    "stopped": "a rank is stopped (SIGSTOP), `timeout=5`",
    "partition": "the network falls into two parts",
    "late names": "no name can be looked up",
    "saving": "a process is killed while it saves",
    "full disk": "the disk is full",
    "state": "the state of one rank is damaged",
    "damaged": "payloads are damaged",
    "forged": "payloads are forged, with a checksum that is right",
}
WORDS = {
    "named": "{} ranks named the lost ones in time",
    "by_torch": "{} were ended by a collective of DDP's or FSDP's own",
    "went_on": "{} trained to the end",
    "refused": "{} refused",
    "accepted": "{} accepted",
    "late": "**{} named them late**",
    "unnamed": "**{} named nobody**",
    "wrong": "**{} named another**",
    "hung": "**{} hung**",
    "aborted": "**{} aborted**",
    "alone": "**{} trained on alone**",
    "torn": "**{} files torn**",
    "one_rank_only": "**{} accepted by one rank only**",
    "changed": "**{} refused after a change**",
    "other_error": "**{} raised something else**",
    "crashed": "**{} crashed**",
}
SHOWN = {"files": "torn"}  # a count of 0 that says it all


def faults(data: Path) -> str:
    """A row per kind of fault: how many trials, and what became of ranks, files, states and payloads."""
    text = []
    for file, command in FILES.items():
        rows = load(data / file)
        groups = {name: [row for row in rows if row["fault"] == name] for name in NAMES}
        body = [[NAMES[name], f"{len(trials):,}", _outcomes(trials)] for name, trials in groups.items() if trials]
        text.append(table(["fault", "trials", "what became of it"], body, left=3) + where(rows[0], command))
    return "\n\n".join(text)


def _outcomes(trials: Sequence[Mapping[str, str]]) -> str:
    counts = {word: sum(int(row.get(word) or 0) for row in trials) for word in (*WORDS, *SHOWN)}
    parts = [text.format(f"{counts[word]:,}") for word, text in WORDS.items() if counts[word]]
    parts += [
        f"{counts[word]:,} {word}, none {none}" for word, none in SHOWN.items() if counts[word] and not counts[none]
    ]
    slowest = max((float(row["seconds"]) for row in trials if row.get("seconds")), default=0.0)
    return ", ".join(parts) + (f"; the slowest took {slowest:.0f} s" if slowest else "")


TABLES = {"faults": faults}
