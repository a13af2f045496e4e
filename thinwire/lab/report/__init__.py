"""Report: one self-contained HTML page from recorded runs: tables that sort, curves, time, bits, commands."""

from __future__ import annotations

from thinwire.lab.report.page import page
from thinwire.lab.report.runs import Run, read, read_all

__all__ = ["Run", "page", "read", "read_all"]
