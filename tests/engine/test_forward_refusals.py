"""What cannot wait in the forward pass is refused in one sentence, with the line to write instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from nets import net
from torch import nn

import thinwire as tw
from thinwire.engine.legal import check_method
from thinwire.engine.needs import refuse_compiled
from thinwire.engine.sharding import check_carried

INTO = tw.Overlap(into_forward="ready")


def whole() -> nn.Module:
    model: nn.Module = torch.compile(net(), backend="eager")  # type: ignore[assignment]
    return model


def in_place() -> nn.Module:
    model = net()
    model.compile(backend="eager")
    return model


def part() -> nn.Module:
    model = net()
    model[2].compile(backend="eager")
    return model


def inside() -> nn.Module:
    return nn.Sequential(whole())


@pytest.mark.parametrize(
    ("make", "name"), [(whole, "the model"), (in_place, "the model"), (part, "2"), (inside, "0")]
)
def test_a_compiled_model(make: type[nn.Module], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is compiled, .*; write Overlap\(into_forward=None\)$"):
        refuse_compiled(make())


def test_a_model_that_is_not_compiled() -> None:
    refuse_compiled(net())


@pytest.mark.parametrize("into", ["ready", "need"])
def test_a_model_that_fsdp_shards(into: str) -> None:
    method = replace(tw.methods.qsgd(), overlap=tw.Overlap(into_forward=into))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^FSDP gathers parameters .*; write Overlap\(into_forward=None\)$"):
        check_carried(method)
    check_carried(replace(method, overlap=tw.Overlap()))


def test_choices_between_two_steps() -> None:
    method = replace(tw.methods.adaptive(), overlap=INTO)
    with pytest.raises(ValueError, match=r" nothing is under way; write Overlap\(into_forward=None\)$"):
        check_method(method, 2, drop_dead=False)
