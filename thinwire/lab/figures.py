"""Tables in README and docs, made from the rows in benchmarks/data: `make figures`.

A page marks the place with `<!-- table: NAME -->` and `<!-- end -->`; the text between them is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from thinwire.core.rates import bits_per_second
from thinwire.lab import (
    adaptive_table,
    bench_eta,
    bench_gpu,
    bench_simulate_table,
    checksum_table,
    congestion_table,
    drawings,
    faults_table,
    language_table,
    overlap_table,
    plan_table,
    race_table,
    scatter_table,
    tasks,
)
from thinwire.lab.intervals import no_loss
from thinwire.lab.markdown import RIVALS, contestant, table, where
from thinwire.lab.records import load, read
from thinwire.lab.reproduce import REPRODUCTIONS, model_error
from thinwire.lab.step_sizes import OPTIMIZERS
from thinwire.lab.stragglers import pages as stragglers

ROOT = Path(__file__).resolve().parents[2]
Rows = Sequence[Mapping[str, str]]
BENCH = "thinwire bench kernels --repeats 41"
BENCH_GPU = "thinwire bench kernels --device cuda"
NO_GPU = f"No rows yet: `{BENCH_GPU} --save benchmarks/data/kernels-cuda.csv` records them."
ALONE_GPU = {"ms_p50": ".3f", "gbps": ".0f", "ratio": ".2f"}
MEMORY_GPU = ("encode", "encode_ef", "decode_add", "mean8")  # bound by memory
PASSES_GPU = (*MEMORY_GPU, "mean_encode")
HOSTS = "thinwire bench step --hosts 4 --budget 12{}` with `--rate 100mbit --repeats 2` and `--rate 1gbit --repeats 3"
HOSTS_GPU = (
    "thinwire bench step --hosts 4 --device cuda --repeats 1 --budget 3{}` with `--rate 1gbit` and `--rate 10gbit"
)
STEP_GPU = "thinwire bench step --local --device cuda --repeats 6{}"
RATES = {"100mbit": "step at 100 Mbit/s", "1gbit": "step at 1 Gbit/s", "10gbit": "step at 10 Gbit/s"}
SPELLED = {"ecq-sgd": "ecq-sgd:exchange=scatter-gather,code=rans"}  # rows of step-hosts are older than this default


def quantisers(data: Path) -> str:
    """All quantisers on the recorded gradient."""
    rows = load(data / "compress.csv")
    body = [
        [
            f"`{r['method']}`",
            f"{float(r['bits_per_element']):.2f}",
            f"{float(r['ratio']):.1f}x",
            f"{float(r['nmse']):.1e}",
            "yes" if r["unbiased"] == "True" else "no",
        ]
        for r in rows
    ]
    head = ["compressor", "bits per element", "smaller by", "squared error / squared norm", "unbiased"]
    return table(head, body) + where(rows[0], "thinwire bench compress")


def training(data: Path) -> str:
    """What `thinwire demo` prints."""
    rows = load(data / "demo.csv")
    body = []
    for r in rows:
        low, high = (100 * float(r[f"accuracy_{end}"]) for end in ("low", "high"))
        body.append(
            [
                OPTIMIZERS.get(r["optimizer"], r["optimizer"]),
                f"`{r['method']}`",
                f"{100 * float(r['accuracy']):.1f}% ({low:.1f} to {high:.1f})",
                f"{float(r['bytes_sent']) / 1e6:.1f} MB",
                f"{float(r['ratio']):.1f}x",
                f"{float(r['seconds']):.1f} s",
                f"{float(r['faster']):.1f}x",
            ]
        )
    head = ["optimizer", "method", "test accuracy", "sent per worker", "less than float32", "seconds", "sooner"]
    return table(head, body, left=2) + where(rows[0], "thinwire demo")


def accuracy(data: Path) -> str:
    """Accuracy over seeds beside float32 at equal epochs, task by task."""
    rows = load(data / "accuracy.csv")
    groups: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for r in rows:
        groups.setdefault((r["task"], r["method"]), []).append(r)
    means = {key: fmean(float(r["accuracy"]) for r in several) for key, several in groups.items()}
    body = [
        [
            task,
            f"`{method}`",
            several[0]["epochs"],
            f"{100 * means[task, method]:.2f}%",
            _points(means[task, method], means[task, "sgd"], tasks.get(task).tested),
            f"{min(100 * float(r['accuracy']) for r in several):.2f} to "
            f"{max(100 * float(r['accuracy']) for r in several):.2f}",
            f"{fmean(float(r['ratio']) for r in several):.1f}x",
        ]
        for (task, method), several in groups.items()
    ]
    head = ["task", "method", "epochs", "mean accuracy", "points to float32", "seeds from, to", "less sent"]
    return table(head, body, left=2) + where(
        rows[0], "thinwire bench accuracy --task digits --epochs 20` and `--task fashion"
    )


def _points(accuracy: float, other: float, tested: int) -> str:
    """The difference in points, with half its 95% interval."""
    if accuracy == other:
        return "0.00"
    return no_loss(accuracy, other, tested)[0].removesuffix(" points")


def step(data: Path) -> str:
    """A training step beside DDP's in local processes."""
    rows = load(data / "step.csv")
    body = [
        [
            f"`{r['method']}`",
            f"{float(r['step_ms']):.0f}",
            f"{float(r['ddp_ms']):.0f}",
            f"{float(r['step_ms']) / float(r['ddp_ms']):.2f}",
            *(f"{float(r[name]):.1f}" for name in ("encode_ms", "wire_ms", "decode_ms")),
            f"{float(r['tx_bits_per_param']):.2f}",
        ]
        for r in rows
    ]
    head = ["method", "step ms", "DDP ms", "ratio", "encode ms", "wire ms", "decode ms", "bits sent per parameter"]
    return table(head, body) + where(rows[0], "thinwire bench step --local")


def step_gpu(data: Path) -> str:
    """The same with ranks that share a GPU: what encoding and decoding take there, and a step without an exchange."""
    rows = load(data / "step-cuda.csv")
    body = [
        [
            f"`{r['method']}`",
            *(f"{float(r[name]):.1f}" for name in ("step_ms", "ddp_ms")),
            f"{float(r['step_ms']) / float(r['ddp_ms']):.2f}",
            *(f"{float(r[name]):.1f}" for name in ("alone_ms", "encode_gpu_ms", "decode_gpu_ms")),
            f"{100 * float(r['codec_share']):.1f}%",
            f"{float(r['tx_bits_per_param']):.2f}",
        ]
        for r in rows
    ]
    head = ["method", "step ms", "DDP ms", "ratio", "alone ms", "encode ms", "decode ms", "both over DDP"]
    return table([*head, "bits sent per parameter"], body) + _command(rows, STEP_GPU)


def hosts(file: str, command: str, data: Path) -> str:
    """A step between hosts with shaped uplinks: one row per contestant and rate."""
    rows = load(data / file)
    body = [
        [
            r["rate"],
            contestant(r["method"]),
            f"{float(r['step_ms']):.0f}",
            f"{float(r['step_ms_p20']):.0f} to {float(r['step_ms_p80']):.0f}",
            f"{float(r['tx_bits_per_param']):.2f}",
            f"{float(r['wire_bound_ms']):.0f}",
            f"{float(r['wire_share']):.2f}",
            f"{float(r['cpu_ms']):.0f}",
            f"{float(r['speedup_over_ddp']):.2f}x",
        ]
        for r in rows
    ]
    head = ["rate", "method", "step ms", "20% to 80%", "bits sent per parameter", "wire bound ms", "its share"]
    return table([*head, "processors ms", "faster than DDP"], body, left=2) + _command(rows, command)


def speedup(file: str, command: str, data: Path) -> str:
    """The same, shorter: how long a step takes at each rate, and how much faster than DDP that is."""
    rows = load(data / file)
    rates = sorted({r["rate"] for r in rows}, key=bits_per_second)
    by_name: dict[str, dict[str, Mapping[str, str]]] = {}
    for r in rows:
        by_name.setdefault(r["method"], {})[r["rate"]] = r
    body = []
    for name, some in by_name.items():
        cells = []
        for rate in rates:
            cells += [f"{float(some[rate]['step_ms']):,.0f} ms", f"{float(some[rate]['speedup_over_ddp']):.1f}x"]
        bits = fmean(float(r["tx_bits_per_param"]) for r in some.values())
        body.append([contestant(name), f"{bits:.1f}", *cells])
    head = [
        "method",
        "bits sent per parameter",
        *(cell for rate in rates for cell in (RATES[rate], "faster")),
    ]
    return table(head, body) + _command(rows, command)


def _command(rows: Rows, command: str) -> str:
    """The machine, and the command with every method."""
    names = dict.fromkeys(r["method"] for r in rows)
    methods = ((SPELLED if command == HOSTS else {}).get(name, name) for name in names if name not in RIVALS)
    return where(rows[0], command.format("".join(f" --method {name}" for name in methods)))


def kernels(data: Path) -> str:
    """Speed of the kernels against a copy: one row per method and one column per kernel."""
    rows = load(data / "kernels.csv")
    names = list(dict.fromkeys(r["kernel"] for r in rows))
    groups: dict[tuple[str, str, str], dict[str, str]] = {}
    for r in rows:
        cells = groups.setdefault((r["method"], r["backend"], r["threads"]), {"copy": r["copy_gbps"]})
        cells[r["kernel"]] = f"{float(r['ratio']):.2f}"
    body = [
        [f"`{method}`", backend, threads, f"{float(cells['copy']):.1f}", *(cells[name] for name in names)]
        for (method, backend, threads), cells in groups.items()
    ]
    head = ["method", "backend", "threads", "copy GB/s", *names]
    return table(head, body, left=2) + where(rows[0], BENCH)


def alone(data: Path) -> str:
    """Kernels that are not compressors: transforms, codes, selection."""
    rows = load(data / "alone.csv")
    body = [
        [
            r["kernel"],
            f"`{r['method']}`",
            r["threads"],
            *(f"{float(r[name]):.{digits}f}" for name, digits in (("ms_p50", 1), ("gbps", 2), ("ratio", 2))),
        ]
        for r in rows
    ]
    head = ["kernel", "of", "threads", "ms", "GB/s", "of a copy"]
    names = " ".join(f"--method {name}" for name in dict.fromkeys(r["method"] for r in rows))
    return table(head, body, left=2) + where(rows[0], f"thinwire bench kernels {names}")


def kernels_gpu(data: Path) -> str:
    """Speed of the quantisers' passes on a GPU against a copy there: one row per method and one column per pass."""
    rows = _gpu_rows(data)
    if not rows:
        return NO_GPU
    there = {r["kernel"] for r in rows}
    names = [name for name in PASSES_GPU if name in there]
    groups: dict[str, dict[str, str]] = {}
    for r in rows:
        if r["kernel"] in names:
            groups.setdefault(r["method"], {})[r["kernel"]] = f"{float(r['ratio']):.2f}"
    body = [[f"`{method}`", *(cells.get(name, "") for name in names)] for method, cells in groups.items()]
    return table(["method", *names], body) + where(rows[0], BENCH_GPU, cores=False)


def alone_gpu(data: Path) -> str:
    """Kernels on a GPU that are not compressors, beside a copy there."""
    rows = _gpu_rows(data)
    if not rows:
        return NO_GPU
    body = [
        [r["kernel"], f"`{r['method']}`", *(f"{float(r[name]):{spec}}" for name, spec in ALONE_GPU.items())]
        for r in rows
        if r["method"].partition(":")[0] in bench_gpu.ALONE
    ]
    return table(["kernel", "of", "ms", "GB/s", "of a copy"], body, left=2) + where(rows[0], BENCH_GPU, cores=False)


def gpu_line(data: Path) -> str:
    """One sentence: where the passes of the quantisers lie."""
    rows = _gpu_rows(data)
    some = sorted(float(r["ratio"]) for r in rows if r["method"] == "qsgd:bits=4" and r["kernel"] in MEMORY_GPU)
    if not some:
        return (
            "On GPUs the kernels are Triton's, with the same bits; `thinwire bench kernels --device cuda` times them."
        )
    return (
        f"On GPUs the kernels are Triton's, with the same bits: on {rows[0]['device']} the passes of `qsgd:bits=4` "
        f"move memory at {some[0]:.2f} to {some[-1]:.2f} of the speed of a copy there."
    )


def _gpu_rows(data: Path) -> list[dict[str, str]]:
    """Recorded on a machine with a GPU; none until then."""
    path = data / "kernels-cuda.csv"
    return load(path) if path.exists() else []


def rate(data: Path) -> str:
    """Error against measured bits on a Gaussian, beside Shannon's bound."""
    rows = [r for r in load(data / "rate.csv") if r["source"] == "gaussian"]
    body = [
        [
            f"`{r['method']}`",
            f"{float(r['bits_per_element']):.3f}",
            f"{float(r['nmse']):.2e}",
            f"{float(r['shannon_nmse']):.2e}",
            f"{float(r['gap_bits']):+.2f}" if r["gap_bits"] else "-",
        ]
        for r in sorted(rows, key=lambda r: float(r["bits_per_element"]))
        if float(r["bits_per_element"]) < 10
    ]
    head = ["method", "bits per element", "error", "Shannon's bound", "bits from the bound"]
    return table(head, body) + where(rows[0], "thinwire bench rate")


def eta(data: Path) -> str:
    """The library's eta beside the best of a grid, on quadratics: a table per judge, a column per graph."""
    rows = read(data / "eta.csv")
    cells = {(r["graph"], r["ranks"], r["method"], r["compressor"]): r for r in bench_eta.summary(rows)}
    head = [f"`{m}`, {graph} of {n}" for m in bench_eta.METHODS for graph, n in bench_eta.GRAPHS.items()]
    tables = []
    for judge, what in bench_eta.JUDGES.items():
        body = []
        for c in bench_eta.COMPRESSORS:
            for ranks in ("differ", "alike"):
                some = [cells[graph, ranks, m, c] for m in bench_eta.METHODS for graph in bench_eta.GRAPHS]
                told = [f"{r['eta']:.2f}, best {r[f'best_eta{judge}']:g}: {r[f'times{judge}']:.2f}" for r in some]
                body.append([f"`{c}`", ranks, *told])
        tables.append(f"By {what}:\n\n" + table(["compressor", "ranks", *head], body, left=2))
    return "\n\n".join(tables) + where(rows[0], "thinwire bench eta")


def paper(name: str, section: str, data: Path) -> str:
    """A section of a reproduction's page."""
    return REPRODUCTIONS[name].page(read(data / f"{name}.csv"))[section]


TABLES: dict[str, Callable[[Path], str]] = {
    "training": training,
    "accuracy": accuracy,
    "step": step,
    "step-gpu": step_gpu,
    "hosts": partial(hosts, "step-hosts.csv", HOSTS),
    "hosts-16": partial(hosts, "step-hosts-16.csv", HOSTS),
    "hosts-gpu": partial(hosts, "step-hosts-cuda.csv", HOSTS_GPU),
    "speedup": partial(speedup, "step-hosts-16.csv", HOSTS),
    "speedup-gpu": partial(speedup, "step-hosts-cuda.csv", HOSTS_GPU),
    "quantisers": quantisers,
    "kernels": kernels,
    "alone": alone,
    "kernels-gpu": kernels_gpu,
    "alone-gpu": alone_gpu,
    "gpu-line": gpu_line,
    "rate": rate,
    "eta": eta,
    **adaptive_table.TABLES,
    **bench_simulate_table.TABLES,
    **checksum_table.TABLES,
    **faults_table.TABLES,
    "race": lambda data: race_table.page(data / "race.csv"),
    "race-16": lambda data: race_table.page(data / "race-16.csv"),
    "language": lambda data: language_table.page(data / "language.csv"),
    "regions": lambda data: race_table.page_regions(data / "race-outer.csv"),
    "reduce-scatter": lambda data: scatter_table.page(data / "reduce-scatter.csv"),
    **plan_table.TABLES,
    "overlap": lambda data: overlap_table.page(data / "step-planned.csv"),
    "congestion": lambda data: congestion_table.page(data / "congestion.csv"),
    "model-error": lambda data: model_error.sentence(read(data / "scaling.csv")),
    **stragglers.TABLES,
    **{
        f"{name}-{section}": partial(paper, name, section)
        for name, made in REPRODUCTIONS.items()
        for section in made.sections
    },
}
PLACE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages(root: Path = ROOT) -> Iterator[tuple[Path, str, str]]:
    """(page, text as it is, text as it should be) of every page with a table."""
    data = root / "benchmarks" / "data"

    def fresh(place: re.Match[str]) -> str:
        return f"{place[1]}\n{TABLES[place[2]](data)}\n\n{place[3]}"

    for page in (root / "README.md", *sorted((root / "docs").glob("**/*.md"))):
        old = page.read_text()
        new = PLACE.sub(fresh, old)
        if PLACE.search(old):
            yield page, old, new


def main() -> None:
    """Rewrite the tables that are out of date, and draw the plots."""
    for page, old, new in pages():
        if old != new:
            page.write_text(new)
            print(f"{page.relative_to(ROOT)}: tables rewritten")
    drawings.draw(ROOT)


if __name__ == "__main__":
    main()
