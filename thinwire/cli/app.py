"""The `thinwire` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import thinwire
from thinwire.cli import (
    bench,
    demo,
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
        _check_sizes(sys.argv[1:] if arguments is None else arguments)
        app(args=arguments, prog_name="thinwire")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except (ValueError, TypeError, OSError, OverflowError) as error:
        _say(error)
        return 2
    except thinwire.PeerError as error:
        _say(error)
        return 1
    return 0


def _check_sizes(words: list[str]) -> None:
    """Refuse numbers that do not fit into 63 bits, as torch would with words of its own."""
    for word in words:
        if word.isdecimal() and int(word) >= 1 << 63:
            raise ValueError(f"{word} is larger than any number of a command; write a smaller one")


def _say(error: Exception) -> None:
    """One sentence: with the name of the file where there is one, and without the stack that torch adds."""
    text = str(error).split("\nException raised from")[0]
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}; write the name of another file, or of one that is there"
    errors.print(f"thinwire: {text}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
