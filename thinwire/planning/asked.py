"""What `tw.plan` is asked for: a model that trains, a loss and an optimizer. What is none is refused in one sentence.

Without these checks the error would come from the first step that is measured, and be about something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from thinwire.comm.network import Network
from thinwire.core.given import is_whole
from thinwire.core.method import Method
from thinwire.planning.company import Company

Makes = Callable[[Iterable[nn.Parameter]], Optimizer]


@contextmanager
def drawing_nothing() -> Iterator[None]:
    """Leave torch's random numbers as they are, whatever dropout draws in the block."""
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus):
        yield


def check_asked(model: Any, loss: Any, hosts: Any, methods: Any, tries: Any, say: Any) -> None:
    """Refuse what is of another type than `tw.plan` takes."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"plan takes a torch.nn.Module; got {type(model).__name__}: write tw.plan(model, batch, ...)")
    if not list(model.parameters()):
        raise ValueError("the model has no parameters, so that there is nothing to send; plan one that is trained")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss={loss!r} is no function; write loss=torch.nn.functional.cross_entropy")
    if not callable(say):
        raise TypeError(f"say={say!r} is no function; write say=print, or leave it out")
    if not is_whole(tries):
        raise ValueError(f"tries={tries!r}: how many methods take real steps? write tries=4, or tries=0 for none")
    if hosts is not None and not isinstance(hosts, Integral):
        raise TypeError(f"hosts={hosts!r} is no number of hosts; write tw.plan(model, batch, hosts=16)")
    if isinstance(methods, str | Method):
        one = methods if isinstance(methods, str) else methods.id
        raise TypeError(f"methods is a list; write methods=[{one!r}]")
    if not isinstance(methods, Iterable):
        raise TypeError(f'methods={methods!r} is no list; write methods=["qsgd", "topk"]')


def check_link(network: Network) -> None:
    """Refuse hosts that differ, since all ranks of a plan do the same at the same time, and links without a rate."""
    if network.slow or network.racks > 1 or network.ranks_per_host > 1:
        raise ValueError(
            "plan takes hosts that are equal, with one rank each and no racks; "
            'write link=tw.Network("1gbit", "1ms"), or tw.simulate(method, task, network=...)'
        )
    if network.bytes_per_second(0) == math.inf:
        raise ValueError('on a link that is infinitely fast nothing pays; write link=tw.Network("100gbit", "10us")')


def check_alike(company: Company, methods: Sequence[Method], hosts: int, link: object) -> None:
    """Refuse ranks that ask for different plans: each would measure something else while the others wait for it."""
    if not company.agree([*(one.id for one in methods), str(hosts), str(link)]):
        raise ValueError(
            "ranks ask for different methods, hosts or links; call tw.plan(...) with the same ones on every rank"
        )


def check_names(net: nn.Module, batch: Mapping[str, Any]) -> None:
    """Refuse a dict whose names the model does not take."""
    try:
        taken = signature(net.forward)
    except ValueError:  # a traced model has none
        return
    try:
        taken.bind(**batch)
    except TypeError as error:
        raise TypeError(
            f"the batch is a dict, which goes to {type(net).__name__} as model(**batch): {error}; where the model "
            "takes the dict itself, write tw.plan(model, (batch, targets), loss=...)"
        ) from None


def check_optimizer(make: Any) -> None:
    """Refuse what does not make an optimizer."""
    if isinstance(make, Optimizer):
        raise TypeError(
            f"optimizer={type(make).__name__}(...) holds the parameters of one model, and copies are trained; "
            f"write optimizer=lambda parameters: torch.optim.{type(make).__name__}(parameters, ...)"
        )
    if make is not None and not callable(make):
        raise TypeError(f"optimizer={make!r} is no function; write optimizer=lambda ps: torch.optim.Adam(ps)")


def optimizer_of(net: nn.Module, make: Makes | None) -> Optimizer:
    """The optimizer of the parameters that are trained; plain SGD unless `make` says otherwise."""
    chosen = [p for p in net.parameters() if p.requires_grad]
    if not chosen:
        raise ValueError(
            "no parameter of the model is trained, so that there is nothing to send; write model.requires_grad_(True)"
        )
    if make is None:
        return SGD(chosen, lr=1e-3)
    made = make(chosen)
    if not isinstance(made, Optimizer):
        raise TypeError(f"optimizer returned {type(made).__name__}; write optimizer=lambda ps: torch.optim.Adam(ps)")
    return made


def square_of(out: Any) -> Tensor:
    """A loss for outputs of which none is known."""
    if not isinstance(out, Tensor):
        raise ValueError(
            f"the outputs are of type {type(out).__name__}; write tw.plan(model, batch, loss=lambda outputs: ...)"
        )
    return out.float().square().mean()
