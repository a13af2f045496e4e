"""The `thinwire` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import thinwire
from thinwire.cli import (
    bench,
    bench_simulate,
    demo,
    language,
    methods,
    plan,
    race,
    report,
    reproduce,
    simulate,
    topology,
    train,
)
from thinwire.cli.output import errors

app = typer.Typer(
    help="Train PyTorch models across slow networks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("methods")(methods.methods)
app.command("topology")(topology.topology)
app.command("race")(race.race)
app.command("plan")(plan.plan)
app.command("simulate")(simulate.simulate)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
bench.app.command("language")(language.bench_language)
bench.app.command("plan")(plan.bench)
bench.app.command("simulate")(bench_simulate.bench_simulate)
app.add_typer(bench.app, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(thinwire.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; bad input is one sentence on standard error and status 2, a lost rank one and status 1."""
    try:
        app(args=arguments, prog_name="thinwire")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except (ValueError, TypeError, OSError) as error:
        errors.print(f"thinwire: {error}", markup=False, soft_wrap=True)
        return 2
    except thinwire.PeerError as error:
        errors.print(f"thinwire: {error}", markup=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
