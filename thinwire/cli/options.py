"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Save = Annotated[Path | None, typer.Option(help="Also write the rows to this CSV file.")]
