"""`thinwire topology`: figures, the drawing, the list, one sentence for bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from thinwire.cli.app import main
from thinwire.topology import TOPOLOGIES, Ring, get
from thinwire.topology.picture import neighbours, picture

BRAILLE = range(0x2800, 0x2900)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["topology", *arguments]) == 0
    return capsys.readouterr().out


def test_figures_of_a_ring(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = json.loads(shown(capsys, "ring", "--workers", "16", "--params", "1000000", "--json"))["rows"]
    assert (row["topology"], row["workers"], row["params"]) == ("ring", 16, 1000000)
    assert (row["degree_min"], row["degree_max"], row["edges"]) == (2, 2, 16)
    assert row["spectral_gap"] == pytest.approx(0.05075, abs=1e-5)
    assert (1 - row["spectral_gap"]) ** row["steps_10x"] == pytest.approx(0.1)
    assert row["largest_pull"] == pytest.approx(4 / 3)
    assert row["bytes_float32"] == 2 * 4_000_000
    assert row["all_reduce_bytes_float32"] == 2 * 15 * 4_000_000 // 16
    assert 4 / 32 < row["bytes_4bit"] / row["bytes_float32"] < 4.1 / 32
    assert row["bytes_4bit"] / row["all_reduce_bytes_4bit"] == pytest.approx(16 / 15, abs=1e-6)
    assert row["neighbours"][0] == [1, 15]


@pytest.mark.parametrize(
    ("name", "n", "degree", "edges", "steps", "copies"),
    [
        ("star", 5, (1, 4), 4, math.log(10) / -math.log(0.8), 4),
        ("complete", 4, (3, 3), 6, 1, 3),
        ("exponential", 8, (3, 3), 24, math.log(10) / math.log(2), 3),
        ("one-peer", 8, (1, 1), 8, 3, 1),
        ("matching", 5, (0, 1), 2, 2 * math.log(10) / math.log(2), 1),
        ("ring", 1, (0, 0), 0, 1, 0),
        ("weights:rows=0 1; 1 0", 2, (1, 1), 1, None, 1),
    ],
)
def test_figures_of_others(
    name: str,
    n: int,
    degree: tuple[int, int],
    edges: int,
    steps: float | None,
    copies: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [row] = json.loads(shown(capsys, name, "--workers", str(n), "--params", "100", "--json"))["rows"]
    assert (row["degree_min"], row["degree_max"]) == degree
    assert row["edges"] == edges
    assert row["steps_10x"] == (steps if steps is None else pytest.approx(steps))
    assert row["bytes_float32"] == 400 * copies


def test_table_and_drawing(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "star", "--workers", "12")
    assert "star, 12 ranks, 25,165,824 parameters" in out
    assert "1 to 11" in out
    assert "0.08333" in out
    assert "1,107,296,256" in out  # 11 copies of 24 Mi floats
    assert "184,549,376" in out  # 2 * 11/12 of one
    assert "11:  0\n" in out
    assert sum(ord(letter) in BRAILLE for letter in out) > 100


@pytest.mark.parametrize("name", ["ring", "torus", "hypercube", "star", "exponential"])
@pytest.mark.parametrize("n", [8, 16])
def test_the_drawing_has_every_rank_and_fits_a_terminal(name: str, n: int) -> None:
    lines = picture(get(name), n).splitlines()
    words = " ".join("".join(c if c.isdigit() else " " for c in line) for line in lines).split()
    assert sorted(map(int, words)) == list(range(n))
    assert sum(line.count("o") for line in lines) == n
    assert max(map(len, lines)) < 80
    assert len(lines) < 40


def test_the_drawing_of_a_ring_is_a_ring() -> None:
    lines = picture(Ring(), 16).splitlines()
    width = max(map(len, lines))
    centre = [line[width // 2 - 8 : width // 2 + 8] for line in lines[6:-6]]
    assert not "".join(centre).strip()  # no chords


def test_many_ranks_are_a_matrix_of_dots() -> None:
    lines = picture(Ring(), 64).splitlines()
    assert len(lines) == 16
    dots = sum(bin(ord(letter) - 0x2800).count("1") for line in lines for letter in line if letter != " ")
    assert dots == 2 * 64
    assert len(picture(Ring(), 1000).splitlines()) <= 48
    assert neighbours(Ring(), 4).splitlines()[0] == "0: 1 3"


def test_a_terminal_without_braille_gets_neighbours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console.ConsoleOptions.ascii_only", property(lambda options: True))
    out = shown(capsys, "ring", "--workers", "4")
    assert out.endswith("0: 1 3\n1: 0 2\n2: 1 3\n3: 0 2\n")


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["topology"]: row for row in json.loads(shown(capsys, "--json"))["rows"]}
    assert set(rows) == set(TOPOLOGIES)
    assert [rows["torus"][f"gap_{n}"] for n in (8, 16, 64)] == pytest.approx([0.4, 0.4, 0.11716], abs=1e-5)
    assert rows["star"]["degree_64"] == "1 to 63"
    assert rows["edges"]["gap_8"] is None
    assert all(row["about"] for row in rows.values())
    out = shown(capsys)
    assert "erdos-renyi" in out
    assert "0.28571" in out


def test_a_graph_of_your_own_brings_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = json.loads(shown(capsys, "edges:pairs=0-1 1-2 2-0 2-3", "--json"))["rows"]
    assert (row["workers"], row["edges"]) == (4, 4)
    [row] = json.loads(shown(capsys, "ring", "--json"))["rows"]
    assert row["workers"] == 8


def test_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "graphs" / "hypercube.svg"
    assert main(["topology", "hypercube", "--plot", str(file), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"][0]["edges"] == 12
    assert "plot written to" in err
    assert "<svg" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rng"], "unknown topology 'rng'; did you mean 'ring'"),
        (["hypercube", "--workers", "6"], "4 or 8 and not 6; write Torus()"),
        (["torus:rows=3"], "write Torus(rows=2)"),
        (["torus:rows=x"], "rows is a whole number or none"),
        (["ring", "--workers", "0"], "write --workers 8"),
        (["ring", "--params", "0"], "write --workers 8 --params 25165824"),
        (["ring", "--workers", "x"], "Invalid value for '--workers'"),
        (["ring", "--plot", "ring.txt"], "write --plot graph.svg"),
        (["--workers", "4"], "which graph? write thinwire topology ring --workers 8"),
        (["edges"], 'write Edges("0-1 1-2 0-2")'),
        (["edges:pairs=0-1 2-3"], "not connected: its parts are 0, 1 | 2, 3"),
        (["edges:pairs=0-1 1-2", "--workers", "4"], "these edges are of 3 ranks, not 4"),
        (["weights:rows=0.5 0.5; 0.5 0.4"], "row 1 of W sums to 0.9"),
        (["erdos-renyi:p=0.01", "--workers", "16"], "not connected in 100 draws"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
