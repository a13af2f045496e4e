"""`thinwire bench`: measurements on this machine, a file for each kind."""

from __future__ import annotations

import typer

from thinwire.cli import bench_codes, bench_kernels, bench_simulate, bench_step, bench_training, language, plan

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)
app.command("kernels")(bench_kernels.bench_kernels)
app.command("compress")(bench_codes.compress)
app.command("rate")(bench_codes.bench_rate)
app.command("checksum")(bench_codes.checksum)
app.command("eta")(bench_training.eta)
app.command("step")(bench_step.bench_step)
app.command("accuracy")(bench_training.bench_accuracy)
app.command("language")(language.bench_language)
app.command("plan")(plan.bench)
app.command("simulate")(bench_simulate.bench_simulate)


@app.callback()
def root() -> None:
    """Measure on this machine."""
