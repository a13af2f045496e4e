"""`tw.plan` and `thinwire plan`: what is measured becomes an outlook; bad input is one sentence."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw
from thinwire.cli.app import main
from thinwire.engine.plan import Item
from thinwire.lab import plan_models
from thinwire.lab.bench_plan import choices, summary
from thinwire.planning import picture
from thinwire.planning.choice import Took, choose
from thinwire.planning.computing import Computing
from thinwire.planning.contestant import Contestant, Sending
from thinwire.planning.link import Link, Sockets
from thinwire.planning.outlook import TORCHRUN, Outlook, Setting, outlook, pays_below
from thinwire.planning.planner import FORECAST, outlook_of, steps_of
from thinwire.planning.rivals import RIVALS
from thinwire.planning.script import Ask, Script, Work
from thinwire.planning.shapes import given
from thinwire.sim.load import Load, Ready

ITEMS = (Item("weight", (1 << 20,), torch.device("cpu")),)
COMPUTING = Computing(ITEMS, (0.02,), 0.02, (0.02, 0.024, 0.03))
DDP = RIVALS["ddp"].contestant("ddp", ITEMS, 0.0)


def coded(bits: float, codec: float, name: str = "coded") -> Contestant:
    """A method that sends so many bits per element in a ring, and takes so long to encode them."""
    script = Script((Work(codec), Ask("ring", bits / 8 * (1 << 20))))
    return Contestant(name, (Sending(("weight",), (script,)),), 5)


def setting(rate: float) -> Setting:
    return Setting(4, Link(rate, goodput=1.0), COMPUTING, Sockets())


def test_it_pays_below_the_rate_at_which_encoding_takes_what_it_saves() -> None:
    saved = 1.5 * (32 - 4) * (1 << 20)  # bits on the wire of each of four hosts
    assert pays_below(setting(1e9), coded(4, 0.01), DDP) == pytest.approx(saved / 0.01, rel=1e-3)
    assert pays_below(setting(1e9), coded(40, 0.01), DDP) is None


def test_a_burst_of_a_fast_link_is_none_of_a_slow_one() -> None:
    burst = 8 << 20  # more than DDP sends in a step
    fast = replace(setting(1e10), link=Link(1e10, goodput=1.0, burst=burst))
    ddp = 1.5 * 32 * (1 << 20)  # bits on the wire of each of four hosts
    for rate in (1e7, 1e8):
        assert fast.at(rate).seconds(DDP) > 0.9 * ddp / rate
        assert fast.at(rate).link.burst == pytest.approx(burst * rate / 1e10)
    assert fast.at(1e11).link.burst == burst


@pytest.mark.parametrize(
    ("rate", "recommended", "binds"), [(1e8, "coded", "link"), (1e9, "coded", "link"), (1e11, "ddp", "computing")]
)
def test_what_is_recommended_and_why(rate: float, recommended: str, binds: str) -> None:
    found = outlook(setting(rate), [DDP, coded(4, 0.01)])
    assert found.recommended == recommended
    assert found.row("ddp").binds == binds
    assert ("the link binds" in found.reason) == (binds == "link")
    assert [row.step_ms for row in found.rows] == sorted(row.step_ms for row in found.rows)
    for row in found.rows:
        assert row.step_ms_p20 <= row.step_ms <= row.step_ms_p80
    assert f"Take {recommended}: " in str(found)
    assert "compare it with sgd()" in str(found)
    assert "docs/" not in str(found)  # a page that nobody has who installed a wheel
    told = json.loads(found.json())
    assert told["recommended"] == recommended
    assert {row["method"] for row in told["rows"]} == {"ddp", "coded"}


def test_what_does_not_suit_is_not_recommended_however_fast() -> None:
    fast = replace(coded(1, 0.001, "fast"), unsuited="does not suit this optimizer")
    found = outlook(setting(1e8), [DDP, coded(4, 0.01), fast])
    assert found.rows[0].method == "fast"
    assert found.recommended == "coded"
    assert "Faster by forecast, but does not suit this optimizer: fast (" in found.reason
    assert "fast" not in found.doubt


def test_adam_is_recommended_what_suits_it() -> None:
    """From shapes alone, of which one bucket of each kind is timed, and the others are in proportion."""
    items = [Ready(f"block{at}.weight", (64, 256 + 8 * at), 0.05) for at in range(6)]
    load = Load((*items, Ready("head.weight", (640, 256), 0.05)), 0.05)
    weights, small = [torch.zeros(1, requires_grad=True)], tw.Overlap(bucket_mb=0.05, chunk_mb=0.05)
    slow = Link(1e8, goodput=1.0)
    methods = [replace(tw.method(name), overlap=small) for name in ("int4", "topk", "diloco")]
    heard = list[str]()
    profile = given(load, share=2.0, sockets=Sockets(), say=heard.append, optimizer=torch.optim.SGD(weights))
    forecast = outlook_of(profile, Setting(4, slow, profile.computing, profile.sockets), methods)
    assert not forecast.row(methods[1].id).unsuited
    assert "learn otherwise" in forecast.row(methods[2].id).unsuited
    played, known = ({which[1] for which in seen} for seen in (profile._taped, profile._known))
    assert (len(played), len(known)) == (1, 7)
    assert forecast.row(methods[0].id).sent_bytes == pytest.approx(1.5 * load.numel * 4.25 / 8, rel=0.1)
    assert " (1 of 3)" in heard[1]
    assert FORECAST in heard[2]
    assert " (2 of 3" in heard[3]
    profile.optimizer = torch.optim.AdamW(weights)
    profile._made.clear()  # what was timed stays
    forecast = outlook_of(profile, Setting(4, slow, profile.computing, profile.sockets), methods)
    assert forecast.row(methods[1].id).unsuited == "does not suit this optimizer"
    assert forecast.recommended == methods[0].id


def test_of_equal_forecasts_the_one_that_asks_least_of_the_processor_is_taken() -> None:
    def chosen(ddp: float, light: float, *tried: float) -> str:
        forecasts = {"ddp": (ddp, 1.0), "quick": (50.0, 40.0), "light": (light, 5.0)}
        steps = dict(zip(("quick", "light"), tried, strict=False))
        return choose({name: Took(*times, steps.get(name)) for name, times in forecasts.items()}).method

    assert chosen(100.0, 52.0) == "light"
    assert chosen(100.0, 53.0) == "quick"
    assert chosen(51.0, 52.0) == "ddp"
    assert chosen(51.0, 52.0, 49.0, 49.5) == "light"  # real steps decide, and ddp has taken none
    assert chosen(51.0, 52.0, 49.0, 51.0) == "quick"  # they must be closer than forecasts
    found = outlook(setting(1e7), [DDP, coded(4, 0.01, "quick"), coded(4.1, 0.0, "light")])
    assert (found.rows[0].method, found.recommended) == ("quick", "light")
    assert "quick is forecast to take" in found.reason
    assert "asks more of the processor" in found.reason


def test_forecasts_alone_say_between_whom_they_cannot_decide() -> None:
    def found(*bits: float) -> Outlook:
        return outlook(setting(1e7), [DDP, *(coded(each, 0.01, f"coded-{each}") for each in bits)])

    near, far = found(4, 4.7, 4.5, 6), found(4, 6)
    assert near.recommended == far.recommended == "coded-4"
    said = "coded-4.5 and coded-4.7 are forecast within 20% of it; real steps between the hosts tell them apart: "
    (line,) = [line for line in str(near).splitlines() if line.startswith(said)]
    assert line.endswith(f"torchrun --nnodes 4 {TORCHRUN}")
    assert json.loads(near.json())["doubt"] == near.doubt == line
    assert found(4, 4.5).doubt.startswith("coded-4.5 is forecast within 20% of it; ")
    assert far.doubt == json.loads(far.json())["doubt"] == ""
    assert "within 20%" not in str(far)


def test_where_hosts_took_real_steps_nothing_is_open() -> None:
    near = outlook(setting(1e7), [DDP, coded(4, 0.01, "four"), coded(4.5, 0.01, "five")])
    assert near.after({"four": 2.0, "five": 2.1}).doubt == ""
    none = near.after({}).doubt  # between these hosts, where one of them warms up for too long
    assert none == "five is forecast within 20% of it, and no real steps were taken, which would tell them apart."


def test_the_command_of_the_doubt_is_that_of_the_page() -> None:
    page = Path(__file__).parents[2] / "docs/planning.md"
    assert f"torchrun --nnodes 4 {TORCHRUN}\n" in page.read_text()


def test_the_picture_has_a_line_per_method_and_marks_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    pyplot = picture._pyplot()  # importing it takes a while
    monkeypatch.setattr(pyplot, "close", drawn.append)
    found = outlook(setting(3e8), [DDP, coded(4, 0.01)])
    found.plot(tmp_path / "plan.svg")
    monkeypatch.undo()
    pyplot.close(drawn[0])
    assert (tmp_path / "plan.svg").read_text().count("coded") == 1  # its name, beside its line
    (axes,) = drawn[0].axes
    (mark,) = [line for line in axes.lines if list(line.get_ydata()) == [0, 1]]  # from the axis to the top
    assert list(mark.get_xdata()) == [3e8, 3e8]
    (name,) = [text for text in axes.texts if text.get_text().strip() == "300 Mbit/s"]
    assert name.get_position()[0] == 3e8
    for method, points in found.curves.items():
        lines = [line for line in axes.lines if list(zip(*line.get_data(), strict=True)) == list(points)]
        assert len(lines) == 1, method
    with pytest.raises(ValueError, match=r"write --plot plan\.png"):
        found.plot(tmp_path / "plan.txt")


def test_a_model_is_measured_and_stays_as_it_is() -> None:
    net = nn.Sequential(nn.Linear(8, 128), nn.Dropout(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
    drawn = torch.get_rng_state()
    before = [p.detach().clone() for p in net.parameters()]
    batch = (torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3]))
    network = tw.Network("10mbit", "1ms")
    found = tw.plan(
        net, batch, loss=nn.functional.cross_entropy, link=network, hosts=4, methods=["int8", "ef-signsgd"]
    )
    assert {row.method for row in found.rows} == {*RIVALS, "int8", "ef-signsgd"}
    assert (found.hosts, found.rate, found.parameters) == (4, 1e7, sum(p.numel() for p in net.parameters()))
    assert found.row("ddp").sent_bytes == 6 * found.parameters
    assert found.row("ef-signsgd").memory_bytes > 4 * 128 * 128
    # At 10 Mbit/s what is sent decides; everything that is sent takes at least this long.
    for row in found.rows:
        assert row.step_ms >= 1e3 * row.sent_bytes * 8 / 1e7
    assert found.row("int8").step_ms < found.row("ddp").step_ms
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not dist.is_initialized()


def test_bad_input_is_one_sentence() -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    with pytest.raises(ValueError, match=r"write tw\.plan\(model, batch, hosts=16\)"):
        tw.plan(net, x, link="1gbit")
    with pytest.raises(ValueError, match=r'write link=tw\.Network\("1gbit", "1ms"\)'):
        tw.plan(net, x, hosts=4)
    with pytest.raises(TypeError, match="a tensor, a pair of inputs and targets, or a dict; got a set"):
        tw.plan(net, {x}, link="1gbit", hosts=4)
    with pytest.raises(ValueError, match="the batch has targets; write loss="):
        tw.plan(net, (x, x), link="1gbit", hosts=4)
    with pytest.raises(ValueError, match="unknown method 'qsdg'; did you mean 'qsgd'"):
        tw.plan(net, x, link="1gbit", hosts=4, methods=["qsdg"])
    with pytest.raises(ValueError, match=r"write tw\.simulate"):
        tw.plan(net, x, link="1gbit", hosts=4, methods=["asgd"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "1"], "write --hosts 4"),
        (["--rate", "fast"], "write a number and kbit, mbit or gbit"),
        (["--model", "resnet51"], "there is no model 'resnet51'; write --model mlp, "),
        (["--model", "resnet50"], "--model resnet50 --computing 300ms"),
        (["--computing", "1s"], "leave --computing out"),
        (["--model", "resnet50", "--computing", "soon"], "computing='soon': write a number and us, ms or s"),
        (["--model", "resnet50", "--computing", "1s", "--batch", "8"], "leave --params and --batch out"),
        (["--verify", "--budget", "nan"], "write --verify --budget 4"),
        (["--params", "0"], "positive numbers"),
        (["--method", "qsdg"], "unknown method 'qsdg'; did you mean 'qsgd'"),
        (["--plot", "plan.txt"], "write --plot plan.png"),
        (["--model", "gpt2", "--computing", "1s", "--verify"], "write --model mlp --verify"),
        (["--optimizer", "lion"], "write --optimizer sgd or --optimizer adamw"),
        (["--model", "nets:net", "--optimizer", "sgd"], "leave --optimizer out"),
        (["--model", "nets:net", "--batch", "2"], "leave --params and --batch out"),
        (["--model", "nets:net", "--verify"], "write --model mlp --verify"),
        (["--model", "no_such_module:make"], "No module named 'no_such_module'; write --model package.module:make"),
        (["--model", "nets:WIDTH"], "WIDTH is a function without arguments that returns the arguments of tw.plan"),
        (["--model", "nets:net"], "such as dict(model=net, sample_batch=(inputs, targets), loss=cross_entropy)"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in " ".join(said.err.split())


def planned() -> dict[str, Any]:
    """What `--model` names in the test below."""
    batch = (torch.ones(2, 8), torch.ones(2, 2))
    return {"model": nn.Linear(8, 2), "sample_batch": batch, "loss": nn.functional.mse_loss}


def test_a_model_of_the_users(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What its function returns are arguments of `tw.plan`, beside those of the command."""
    asked: dict[str, Any] = {}

    def plan(**arguments: Any) -> Outlook:
        asked.update(arguments)
        arguments["say"](f"int4 {FORECAST} 3.0 ms a step")
        return outlook(setting(1e9), [DDP])

    monkeypatch.setitem(sys.modules, "theirs", SimpleNamespace(planned=planned))
    monkeypatch.setattr(plan_models, "plan", plan)
    assert main(["plan", "--model", "theirs:planned", "--method", "int4", "--rate", "1gbit"]) == 0
    assert {"model", "sample_batch", "loss", "link", "hosts", "methods"} <= set(asked)
    assert asked["methods"] == ["int4"]
    assert "int4 is forecast to take 3.0 ms a step" in capsys.readouterr().err


def test_json_says_how_it_was_made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As that of every command, for `thinwire report`."""
    found = outlook(setting(1e9), [DDP, coded(4, 0.01)])
    monkeypatch.setattr(plan_models, "outlook", lambda *_: found)
    assert main(["plan", "--rate", "1gbit", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["environment"]["thinwire"] == tw.__version__
    assert told["recommended"] == found.recommended


@pytest.mark.parametrize(("bits", "open_"), [(4.5, True), (6, False)])
def test_the_command_says_it_too(
    bits: float, open_: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = outlook(setting(1e7), [DDP, coded(4, 0.01), coded(bits, 0.01, "other")])
    monkeypatch.setattr(plan_models, "outlook", lambda *_: found)
    assert main(["plan", "--rate", "10mbit"]) == 0
    said = capsys.readouterr().out
    assert ("other is forecast within 20% of it; real steps between the hosts tell them apart: " in said) == open_
    assert ("torchrun" in said) == open_


def test_a_latency_would_be_ignored_where_the_link_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["plan", "--latency", "5ms"]) == 2
    assert "write --rate 1gbit --latency 5ms" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "arguments",
    [["--hosts", "1"], ["--hosts", "two"], ["--rate", "1gbit,fast"], ["--params", "0"], ["--budget", "nan"]],
)
def test_bad_arguments_of_the_benchmark(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plan", *arguments]) == 2
    assert "write" in capsys.readouterr().err


def test_the_summary_of_cells() -> None:
    cells = [("ddp", 100.0, 110.0, 0.0), ("int8", 50.0, 40.0, 9.0), ("topk", 49.0, 52.0, 7.0)]
    rows = [
        {
            "method": m,
            "hosts": 2,
            "rate": "1gbit",
            "predicted_ms": p,
            "step_ms": s,
            "error": p / s - 1,
            "codec_ms": codec,
            "overhead_ms": 1.0,
            "computing_ms": 10.0,
            "computing_now_ms": 0.1 * s,
        }
        for m, p, s, codec in cells
    ]
    told = summary(rows)
    assert told["cells"] == 3
    assert told["worst_error"] == pytest.approx(0.25)
    assert [(chosen["method"], best["method"]) for chosen, best in choices(rows)] == [("topk", "int8")]
    assert told["recommended_loses"] == pytest.approx(0.3)
    assert told["recommended_near"] == 0
    assert (told["computing_from"], told["computing_to"]) == pytest.approx((0.4, 1.1))


class Named(nn.Module):
    """As Hugging Face's models: batches have names, and outputs a loss where the batch has labels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        out = {"logits": self.linear(x)}
        return out if labels is None else {"loss": (out["logits"] - labels).square().mean(), **out}


def test_a_batch_may_be_a_dict() -> None:
    net, x = Named(), torch.ones(3, 4)
    before = net.linear.weight.detach().clone()
    steps_of({"x": x, "labels": torch.zeros(3, 2)}, None, None)(net)[0]()
    assert not torch.equal(before, net.linear.weight)
    steps_of({"x": x}, lambda out: out["logits"].sum(), None)(net)[0]()
    with pytest.raises(ValueError, match='the outputs have no loss; put the targets into the batch, as "labels"'):
        steps_of({"x": x}, None, None)(net)[0]()
    with pytest.raises(TypeError, match="a tensor, a pair of inputs and targets, or a dict; got a str"):
        steps_of("x", None, None)
