"""What choosing per tensor saves at equal error: on gradients that are real, in training, and by the step.

python benchmarks/adaptive.py [KIND ...], which writes benchmarks/data/adaptive.csv. Rows of the kinds named are made
anew, all if none is; the others stay. Kinds:

    measured   The programme on a sum of real gradients, some steps into training. `possible` is by how many bits per
               element a quantiser with any fraction of bits could do with less at equal error: half the log2 of the
               arithmetic over the geometric mean of the tensors' mean squares. `each` is the error of the choice on
               the gradients one by one.
    trained    Two workers on the clock: all bytes sent, and the loss on data that is not trained on (`digits`: of
               the last 20 steps). Ranks are compared with PowerSGD's, too, which start from those of the last step.
    step       `tw.sim.foresee` of ResNet-50 and GPT-2 small, without time for encoding, as if their tensors lost what
               those of the same names lost in the small nets.
    lags       `lags` and shares that hide behind backward, against top-k of 1% of 16 MB buckets, by `tw.sim.foresee`.

Bytes, errors, steps and losses are over those of the uniform setting.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

import thinwire as tw
from thinwire.core.adapt import Adapt
from thinwire.core.budget import no_worse, total
from thinwire.core.types import Key, Layout
from thinwire.engine.stats import compression_error
from thinwire.lab import problems, records, uneven
from thinwire.sim.load import Load
from thinwire.sim.problem import Problem
from thinwire.sync import hidden

OUT = Path(__file__).parent / "data" / "adaptive.csv"
Kind = Literal["bits", "ratio", "rank"]
UNIFORM: dict[Kind, float] = {"bits": 4, "ratio": 0.01, "rank": 4}
LEAST = {"bits": 2, "rank": 1}  # settings that are whole numbers
MANY = replace(uneven.GPT, words=8192, layers=2, width=64)  # 84% of the elements are the embedding's
NETS: dict[str, Callable[[int, int], Problem]] = {
    "digits": problems.digits,
    "fashion": problems.fashion,
    "words": uneven.words,
    "words, large embedding": lambda workers, seed: uneven.words(workers, seed, MANY),
    "resnet": uneven.resnet,
}
BEFORE, SEEN = 20, 5  # steps before gradients are looked at, and then
MEASURED = 1024  # tensors below it are left out
WORKERS, EVERY, SMALL = 2, 20, 256
NARROW = 8  # channels of the ResNet that is trained
RANKS, LATENCY, SECONDS = 8, 50e-6, 0.3
RATES = ("100mbit", "1gbit")
MODELS = {"resnet50": "resnet", "gpt2": "words"}
TRAVELS = 10_000  # tensors below it travel in float32
GPT2 = {  # names of GPT-2's tensors here
    "wte": "words",
    "wpe": "places",
    "attn.c_attn": "queries_keys_values",
    "attn.c_proj": "attended",
    "mlp.c_fc": "hidden",
    "mlp.c_proj": "out",
}


@dataclass(frozen=True)
class Seen:
    """What a tensor's gradients lost: by option, of their sum, and of all of them one by one."""

    layout: Layout
    square: float
    lost: list[float]
    lost_each: list[float]


class Training(NamedTuple):
    """What is trained, for how many steps, with which seeds, and what is chosen meanwhile."""

    case: str
    make: Callable[[int, int], Problem]
    steps: int
    seeds: tuple[int, ...]
    kinds: tuple[Kind, ...]


TRAININGS = (
    Training("digits", problems.digits, 150, (0, 1), ("bits", "ratio", "rank")),
    Training("words", uneven.words, 100, (0, 1), ("bits", "ratio", "rank")),
    Training("resnet, 8 wide", partial(uneven.resnet, width=NARROW), 60, (0,), ("bits", "rank")),
)


def row(kind: str, case: str, setting: str, **found: float) -> records.Row:
    """A row, which is printed too."""
    columns = ("bytes", "error", "each", "possible", "largest", "tensors", "step", "loss")
    made: records.Row = {"kind": kind, "case": case, "setting": setting, **{c: found.get(c) for c in columns}}
    print({name: round(v, 4) if isinstance(v, float) else v for name, v in made.items() if v is not None}, flush=True)
    return made


def adapt_of(kind: Kind) -> Adapt:
    """What `adaptive` chooses from."""
    found = tw.methods.adaptive(kind, UNIFORM[kind]).sync.adapt
    assert found is not None
    return found


@cache
def seen(net: str, kind: Kind) -> list[Seen]:
    """Train for a while, and measure the options."""
    problem, options = NETS[net](1, 0), adapt_of(kind).choices
    model = problem.model()
    optimizer = problem.optimizer(model.parameters())
    some = {name: p for name, p in model.named_parameters() if p.numel() >= MEASURED}
    layouts = {name: Layout((name,), (tuple(p.shape),)) for name, p in some.items()}
    sums = {name: torch.zeros(p.numel()) for name, p in some.items()}
    each = {name: [0.0] * len(options) for name in some}
    for step in range(BEFORE + SEEN):
        optimizer.zero_grad()
        torch.autograd.backward(problem.loss(model, 0, step))
        for name, p in some.items() if step >= BEFORE else ():
            assert p.grad is not None
            sums[name] += p.grad.flatten()
            each[name] = [
                a + b for a, b in zip(each[name], _lost(options, p.grad.flatten(), layouts[name]), strict=True)
            ]
        optimizer.step()
    return [
        Seen(layouts[name], float(x.square().sum()), _lost(options, x, layouts[name]), each[name])
        for name, x in sums.items()
    ]


def _lost(options: tuple[tw.Compressor, ...], x: torch.Tensor, layout: Layout) -> list[float]:
    square = float(x.square().sum())
    return [square * float(compression_error(option, x, layout, Key(seed=1))) for option in options]


def measured() -> Iterator[records.Row]:
    """One row per net and kind."""
    for net in NETS:
        for kind, uniform in UNIFORM.items():
            tensors, options = seen(net, kind), adapt_of(kind).choices
            sizes = [[option.nbytes(one.layout) for option in options] for one in tensors]
            choice = no_worse([one.lost for one in tensors], sizes)
            elements = sum(one.layout.numel for one in tensors)
            mean = sum(one.square for one in tensors) / elements
            logs = [one.layout.numel * math.log2(one.square / one.layout.numel / mean) for one in tensors]
            yield row(
                "measured",
                net,
                f"{kind}={uniform}",
                bytes=total(sizes, choice) / total(sizes, [0] * len(sizes)),
                error=_over([one.lost for one in tensors], choice),
                each=_over([one.lost_each for one in tensors], choice),
                possible=-sum(logs) / elements / 2,
                largest=max(one.layout.numel for one in tensors) / elements,
                tensors=len(tensors),
            )


def _over(lost: list[list[float]], choice: list[int]) -> float:
    return sum(one[option] for one, option in zip(lost, choice, strict=True)) / sum(one[0] for one in lost)


def trained() -> Iterator[records.Row]:
    """The choice, and a uniform setting of about as many bytes or fewer, against the uniform setting."""
    for one in TRAININGS:
        for kind, seed in itertools.product(one.kinds, one.seeds):
            problem, uniform, case = one.make(WORKERS, seed), UNIFORM[kind], f"{one.case}, seed {seed}"
            nbytes, loss = run(plain(kind, uniform), problem, one.steps)
            ours, our_loss = run(tw.methods.adaptive(kind, uniform, EVERY), problem, one.steps)
            yield row("trained", case, f"{kind}={uniform}, chosen", bytes=ours / nbytes, loss=our_loss / loss)
            if ours < nbytes:
                less = uniform * ours / nbytes
                if kind in LEAST:
                    less = max(LEAST[kind], min(uniform - 1, round(less)))
                theirs, their_loss = run(plain(kind, less), problem, one.steps)
                setting = f"{kind}={less:.2g} for all"
                yield row("trained", case, setting, bytes=theirs / nbytes, loss=their_loss / loss)
            if kind == "rank":
                theirs, their_loss = run(tw.methods.powersgd(int(uniform)), problem, one.steps)
                yield row("trained", case, f"powersgd:rank={uniform}", bytes=theirs / nbytes, loss=their_loss / loss)


def run(method: tw.Method, problem: Problem, steps: int) -> tuple[float, float]:
    """Bytes sent, and the loss that the problem tests or else that of the last 20 steps."""
    done = tw.simulate(method, problem, WORKERS, steps=steps, min_size=SMALL)
    last = [one.loss for one in done.moments if one.step >= steps - 20]
    return done.bytes_sent, done.tests[0].get("loss", sum(last) / len(last))


def plain(kind: Kind, setting: float) -> tw.Method:
    """The same compressor for all tensors."""
    return replace(tw.methods.adaptive(kind, setting), sync=tw.Sync())


def alike(model: str, name: str) -> str:
    """The name that a tensor of a named model has in the small net."""
    if model == "resnet50":
        return name
    found = re.fullmatch(r"(?:h\.(\d+)\.)?(.+)\.weight", name)
    assert found is not None
    block, part = found.groups()
    place = f"blocks.{int(block) * uneven.GPT.layers // 12}." if block else ""
    return f"{place}{GPT2[part]}.weight"


def step() -> Iterator[records.Row]:
    """4 bits for all against the choice, for errors as in the small net."""
    method, adapt = tw.methods.adaptive(), adapt_of("bits")
    for model, net in MODELS.items():
        load = Load.of(model, seconds=SECONDS)
        layouts = [Layout((one.name,), (one.shape,)) for one in load.tensors if math.prod(one.shape) >= TRAVELS]
        known = {one.layout.names[0]: one for one in seen(net, "bits")}
        like = [known.get(alike(model, one.names[0])) for one in layouts]
        unknown = [0.0] + [math.inf] * (len(adapt.choices) - 1)
        errors = [one.lost if one else unknown for one in like]
        sizes = [[option.nbytes(one) for option in adapt.choices] for one in layouts]
        choice = no_worse(errors, sizes)
        chosen = adapt.chosen(method.exchange, {a.names[0]: o for a, o in zip(layouts, choice, strict=True)})
        for rate in RATES:
            network = tw.Network(rate, LATENCY)
            ours, theirs = (
                tw.sim.foresee(one, load, RANKS, network=network).step
                for one in (replace(method, exchange=chosen, sync=tw.Sync()), tw.methods.qsgd())
            )
            yield row(
                "step",
                f"{model}, {rate}",
                "bits=4",
                bytes=total(sizes, choice) / total(sizes, [0] * len(sizes)),
                error=_over(errors, choice),
                step=ours / theirs,
            )


def lags() -> Iterator[records.Row]:
    """Steps over that of top-k by bucket, and elements sent over its 1%."""
    for model in MODELS:
        load = Load.of(model, seconds=SECONDS)
        layers = load.layers()
        elements = sum(one.numel for one in layers)
        for rate in RATES:
            network = tw.Network(rate, LATENCY)
            base = tw.sim.foresee(tw.methods.topk(0.01, indices="packed"), load, RANKS, network=network).step
            shares = hidden(layers, RANKS, rate, LATENCY)
            for setting, ratios in (("ratio=0.01", None), ("hidden", shares)):
                done = tw.sim.foresee(tw.methods.lags(0.01, ratios), load, RANKS, network=network)
                sent = sum(one.numel * (shares[one.name] if ratios else 0.01) for one in layers)
                yield row("lags", f"{model}, {rate}", setting, bytes=sent / elements / 0.01, step=done.step / base)


KINDS: dict[str, Callable[[], Iterator[records.Row]]] = {
    "lags": lags,
    "measured": measured,
    "step": step,
    "trained": trained,
}


def main(wanted: list[str]) -> None:
    """Write the rows."""
    for kind in wanted or KINDS:
        if kind not in KINDS:
            raise SystemExit(f"there is no kind {kind!r}; write {', '.join(KINDS)}")
    torch.set_num_threads(1)
    kept: list[dict[str, Any]] = [*records.load(OUT)] if OUT.exists() else []
    for kind in wanted or KINDS:
        kept = [one for one in kept if one["kind"] != kind] + list(KINDS[kind]())
        records.save(OUT, kept)


if __name__ == "__main__":
    main(sys.argv[1:])
