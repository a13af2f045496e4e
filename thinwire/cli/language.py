"""`thinwire bench language`: a language model over slow links, at equal tokens for all contestants."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import thinwire as tw
from thinwire.cli.output import line, reserve, show
from thinwire.lab import gpt2, language, records, torchft_rival
from thinwire.lab.corpus import SYMBOLS
from thinwire.lab.language_table import COLUMNS, keep, points, summary
from thinwire.lab.launch import Say, launch
from thinwire.lab.net import Network
from thinwire.lab.records import Row
from thinwire.lab.rivals import RIVALS


def bench_language(
    hosts: Annotated[int, typer.Option(help="Hosts of a network lab, one rank on each; needs root.")] = 4,
    rate: Annotated[str, typer.Option(help="Rate of every host's uplink.")] = "100mbit",
    device: Annotated[str, typer.Option(help="cpu, or cuda: all ranks on one GPU.")] = "cuda",
    method: Annotated[
        list[str] | None, typer.Option(help="Only this contestant, a method id or one of DDP's; may be repeated.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="May be repeated (default: 0).")] = None,
    steps: Annotated[int, typer.Option(help="Of every run.")] = 300,
    every: Annotated[int, typer.Option(help="Steps from one validation to the next.")] = 30,
    batch: Annotated[int, typer.Option(help="Windows per rank and step.")] = 32,
    width: Annotated[int, typer.Option(help="Of the model.")] = language.SHAPE.width,
    layers: Annotated[int, typer.Option(help="Of the model.")] = language.SHAPE.layers,
    lr: Annotated[float, typer.Option(help="Of AdamW, the same for all.")] = 1e-3,
    timed: Annotated[
        int, typer.Option(help="Steps at the rate, before all steps on free links; 0: all steps at the rate.")
    ] = 0,
    data: Annotated[Path | None, typer.Option(help="Folder of Python sources, if they lie elsewhere.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, with the curves.")] = False,
    save: Annotated[Path | None, typer.Option(help="Also write the rows to this CSV file; others stay.")] = None,
    curves: Annotated[Path | None, typer.Option(help="Also write the curves to this CSV file, likewise.")] = None,
) -> None:
    """Train a language model under each method over slow links: validation loss, seconds and bytes."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: write --device cpu or --device cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "torch finds no GPU here; write --device cpu --width 64 --layers 2, or install torch with CUDA"
        )
    if width % 64 or layers < 1:
        raise ValueError(f"--width {width} --layers {layers}: write a multiple of 64, and 1 or more layers")
    shape = gpt2.Shape(SYMBOLS, layers, width, width // 64, language.SHAPE.context)
    job = language.Job(rate, shape, batch, steps, every, lr=lr, device=device, timed=timed, data=data)
    job.check()
    names = list(dict.fromkeys(method or language.METHODS))
    for name in names:
        if name not in RIVALS and not torchft_rival.is_one(name, device):
            tw.method(name)
    runs = [language.Run(name, one) for one in dict.fromkeys(seed or [0]) for name in names]
    reserve(save, curves)

    def file(row: Row) -> None:
        """Write each run as it ends."""
        for path, kept in ((save, [{k: v for k, v in row.items() if k != "curves"}]), (curves, points([row]))):
            if path is not None:
                keep(path, kept)

    with Network(hosts, rate) as network, _line(len(runs), file) as hear:
        gpu = device == "cuda"
        rows = launch(language.bench, hosts, job, runs, timeout=12 * 3600.0, hear=hear, hosts=network, gpu=gpu)[0]
    if as_json:
        json.dump({"environment": records.environment(), "rows": rows}, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    title = (
        f"{rows[0]['params']:,} parameters, {rows[0]['tokens']:,} bytes read, {hosts} hosts at {rate}. "
        "held_out: validation loss in nats per byte; * seconds of a few steps, times all."
    )
    show(summary(rows), as_json=False, title=title, columns=COLUMNS)


@contextmanager
def _line(count: int, file: Any) -> Iterator[Say]:
    """A line on standard error that says how far it has come. Rows are filed as they come."""
    with line() as say_so:

        def hear(news: Any) -> None:
            if isinstance(news, dict):
                file(news)
                return
            number, run, step, seconds, loss = news
            said = f"run {number + 1} of {count}: {run.method}, seed {run.seed}"
            say_so(f"{said}: {step} steps, {seconds:.1f} s, {loss:.3f}")

        yield hear
