"""Layouts as keys."""

from __future__ import annotations

from thinwire import Layout
from thinwire.lab.launch import Say, launch


def hashed(_: Say) -> tuple[int, int]:
    """Of a layout, and of a string, whose hash every program draws anew."""
    return hash(Layout(("weight", "bias"), ((3, 2), (3,)))), hash("weight")


def test_a_layout_hashes_the_same_in_every_process() -> None:
    """Its hash is kept, and pickled with it."""
    ((there, string),) = launch(hashed, 1, timeout=60)
    assert string != hash("weight")
    assert there == hash(Layout(("weight", "bias"), ((3, 2), (3,))))
