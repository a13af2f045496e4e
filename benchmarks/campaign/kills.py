"""Ranks that are killed (SIGKILL) or stopped (SIGSTOP) in any phase, under many settings, and what the others say."""

from __future__ import annotations

import json
import random
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from campaign.nursery import Ending, Nursery
from campaign.training import PHASES, SETTINGS, STEPS, Fault, Setting

RANKS = 4
DELAYS = {"attach": 0.3, "switch": 0.1, "detach": 0.05}  # s: how long a phase takes at most, 0.02 where not said
STOPPED = 5.0  # `timeout` of attach where a rank is stopped, which only a time-out can notice
PROMISED = {"killed": 5.0, "killed in attach": 25.0, "stopped": STOPPED + 5.0, "store": 3.0}
"""Seconds after which docs/faults.md promises an error; `store` is added where the victim hosts the store."""
SLACK = 5.0  # seconds for starting late on a machine that runs several trials
HUNG = 60.0  # seconds after which a rank is said to hang

GOOD, BAD = ("named", "by torch", "went on"), ("late", "unnamed", "wrong", "hung", "aborted", "alone")

Row = dict[str, Any]


class Trial(NamedTuple):
    """What happens in one trial."""

    number: int
    kind: str  # "killed" or "stopped"
    name: str  # of the setting
    fault: Fault
    launcher: bool  # whether somebody other than rank 0 hosts the store

    def __call__(self, nursery: Nursery) -> Row:
        return run(nursery, self)


def trials(kind: str, count: int, seed: int, only: str | None = None) -> Iterator[Trial]:
    """Every setting and every phase in turn, the rest by chance; the same seed gives the same trials."""
    names = [name for name in SETTINGS if only is None or name == only]
    signals = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
    for number in range(count):
        draw = random.Random(f"{kind}/{seed}/{number}")
        phase = PHASES[(number // len(names) + number) % len(PHASES)]
        step = draw.randrange(STEPS - 3) if phase in ("forward", "backward", "step") else 0
        fault = Fault(draw.randrange(RANKS), phase, step, draw.uniform(0, DELAYS.get(phase, 0.02)), signals[kind])
        yield Trial(number, kind, names[number % len(names)], fault, draw.random() < 0.5)


def run(nursery: Nursery, trial: Trial) -> Row:
    """One trial, as a row."""
    setting = SETTINGS[trial.name]
    timeout = STOPPED if trial.kind == "stopped" else 30.0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        others = []
        if trial.launcher:
            others.append(nursery.start("training.store", folder / "store.log", folder=place))
        children = [
            nursery.start(
                "training.train",
                folder / f"log{rank}",
                folder=place,
                rank=rank,
                ranks=RANKS,
                setting=asdict(setting),
                fault=asdict(trial.fault),
                hosts_store=not trial.launcher,
                timeout=timeout,
            )
            for rank in range(RANKS)
        ]
        survivors = [child for rank, child in enumerate(children) if rank != trial.fault.rank]
        endings = nursery.wait(survivors, HUNG)
        nursery.wait([children[trial.fault.rank], *others], 0.5)
        diaries = [read(folder / f"rank{rank}") for rank in range(RANKS)]
        logs = [(folder / f"log{rank}").read_text(errors="replace") for rank in range(RANKS)]
    return judge(trial, setting, diaries, {children.index(child): end for child, end in endings.items()}, logs)


def read(path: Path) -> list[Row]:
    """A rank's diary; the last line may have been cut off."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def judge(
    trial: Trial, setting: Setting, diaries: list[list[Row]], endings: dict[int, Ending], logs: list[str]
) -> Row:
    """How the survivors fared: each named the victim, went on as it may, or did one of the things that are wrong."""
    victim = trial.fault.rank
    struck = next((entry for entry in diaries[victim] if "fault" in entry), None)
    row: Row = {
        "trial": trial.number,
        "fault": trial.kind,
        "setting": trial.name,
        "phase": trial.fault.phase,
        "victim": victim,
        "store": "launcher" if trial.launcher else "rank 0",
    }
    by_torch = {rank for rank, end in endings.items() if setting.front != "attach" and _by_torch(diaries[rank], end)}
    lost = {victim} | by_torch
    verdicts = {rank: _verdict(trial, setting, struck, diaries[rank], end, lost) for rank, end in endings.items()}
    verdicts |= dict.fromkeys(by_torch, "by torch")
    late = 0.0 if struck is None else max(end.when - struck["when"] for end in endings.values())
    row |= counted(verdicts, diaries, logs) | {"seconds": round(late, 1) if struck else ""}
    return row


def counted(verdicts: dict[int, str], diaries: list[list[Row]], logs: list[str]) -> Row:
    """How many ranks got each verdict, and what those said that did not do as they must."""
    bad = {rank: verdict for rank, verdict in verdicts.items() if verdict not in GOOD}
    row: Row = {"ranks": len(verdicts)}
    row |= {word.replace(" ", "_"): sum(verdict == word for verdict in verdicts.values()) for word in GOOD + BAD}
    row["what"] = "; ".join(f"rank {rank} {word}: {_last(diaries[rank], logs[rank])}" for rank, word in bad.items())
    return row


def _by_torch(diary: list[Row], ending: Ending) -> bool:
    """Whether a collective of DDP's or FSDP's own ended it, or keeps it for torch's own time-out, which is longer."""
    last = diary[-1] if diary else {}
    if ending.status is None:
        return last.get("phase") in ("ready", "forward", "backward")
    return last.get("ended") in ("RuntimeError", "DistBackendError") and "gloo" in last["text"]


def _verdict(
    trial: Trial, setting: Setting, struck: Row | None, diary: list[Row], ending: Ending, lost: set[int]
) -> str:
    if ending.status is None:
        return "hung"
    if ending.status < 0:
        return "aborted"
    last = diary[-1] if diary else {}
    victim, seconds = trial.fault.rank, 0.0 if struck is None else ending.when - struck["when"]
    if last.get("ended") == "done":
        left = struck is None or struck["phase"] in ("detach", "end")
        return "went on" if left or setting.goes_on else "alone"
    if "ended" not in last:
        return "unnamed"
    hosts = not trial.launcher and victim == 0
    named = (last["ranks"] and set(last["ranks"]) <= lost) or (
        hosts and not last["ranks"] and "rank 0" in last["text"]
    )
    if not named:
        return "wrong" if last["ranks"] else "unnamed"
    attaching = trial.fault.phase in ("ready", "attach", "switch")
    promise = PROMISED["killed in attach" if attaching and trial.kind == "killed" else trial.kind]
    return "named" if seconds < promise + PROMISED["store"] * hosts + SLACK else "late"


def _last(diary: list[Row], log: str) -> str:
    """What a rank said at its end, in a line."""
    entry = diary[-1] if diary else {}
    text = f"{entry.get('ended', entry.get('phase', 'nothing'))} {entry.get('text', '')}".strip()
    return " ".join((text if "ended" in entry else f"{text} | {log[-300:]}").split())[:400]
