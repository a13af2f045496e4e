"""attach: one line in a training loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from thinwire.core.method import Method
from thinwire.engine.hooks import by_hooks
from thinwire.engine.misuse import (
    check_initialised,
    check_method_type,
    check_model,
    group_of,
    refuse_wrapped_later,
    refuse_wrapper,
    tuple_of,
)
from thinwire.engine.needs import refuse_compiled
from thinwire.engine.optimizers import check_free, followed
from thinwire.engine.parameters import trained
from thinwire.engine.settings import Reduction, Settings
from thinwire.engine.skipping import OnNonfinite, check_policy
from thinwire.engine.wire import Wire


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: Method,
    *,
    process_group: dist.ProcessGroup | None = None,
    min_size: int | None = None,
    exclude: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 600.0,
    drop_dead: bool = False,
    on_nonfinite: OnNonfinite = "skip",
    reduce: Reduction = "mean",
    quorum: int | None = None,
) -> Wire:
    """Exchange the gradients of `model` with `method` from here on; every rank calls it with the same arguments.

    Parameters and buffers become those of rank 0, after a look at whether all ranks have the same ones. Each backward
    pass exchanges what it computed and leaves the result in `p.grad`, so that clipping, a GradScaler and
    `optimizer.step` see it. Where several optimizers share the model, give all of them in a list, and go on stepping
    each. Tensors below `min_size` elements and tensors whose names match a pattern in `exclude` travel uncompressed.
    Without `min_size` those are vectors below 10,000 elements, and matrices too unless they add much to the bytes;
    methods that keep no magnitudes compress all. Rank 0 logs what share of the bytes travels compressed, and warns if
    it is less than half.
    A rank that does not answer for `timeout` seconds is an error; one that has died is noticed at once.

    When a gradient is not finite on some rank, `on_nonfinite` says what happens to the optimizer's next step on all
    ranks: it changes nothing ("skip"), raises FloatingPointError ("raise"), or is taken all the same ("keep"). Where
    models are exchanged, each rank decides by its own gradients.

    With `reduce="sum"`, `p.grad` is the sum over ranks and not their mean, for programs that divide their loss by the
    samples or tokens of all ranks.

    Methods that gossip leave gradients alone and exchange models inside `optimizer.step`, with neighbours only; ranks
    then differ, and `wire.consensus()` is the model to keep. With `drop_dead` they go on without a neighbour that has
    died or does not answer: its weight passes to the ranks that it was connected to. Where fewer than `quorum` ranks
    are left that can reach each other over the graph (by default 2, so that none trains alone), they raise PeerError.
    """
    check_method_type(method, "tw.attach(model, optimizer, {})")
    check_model(model)
    single = followed(optimizer, method)
    check_policy(on_nonfinite)
    check_initialised()
    check_free(single)
    group = group_of(process_group)
    settings = Settings(min_size, tuple_of(exclude), seed, timeout, drop_dead, on_nonfinite, reduce, quorum)
    members = trained(model, single)
    if method.overlap.into_forward is not None:
        refuse_compiled(model)
    wire = Wire(model, single, members, method, group, settings, partial(by_hooks, model))
    wire._hold(refuse_wrapper(model))
    wire._hold(refuse_wrapped_later(model, single, members))
    return wire
