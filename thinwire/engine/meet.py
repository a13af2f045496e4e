"""Meet: the ranks of a wire find each other, compare what they were called with, and have a runner each."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch.distributed as dist

from thinwire.comm import backend
from thinwire.core.types import Layout
from thinwire.core.version import VERSION
from thinwire.engine.dropping import ALONE
from thinwire.engine.groups import Wanted
from thinwire.engine.handshake import Fields, handshake
from thinwire.engine.motion import Motion, depth_of
from thinwire.engine.runner import Runner
from thinwire.engine.store import warn_of_restarts
from thinwire.engine.telemetry import Telemetry
from thinwire.engine.transport import ProcessTransport

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from thinwire.core.method import Method
    from thinwire.engine.settings import Settings

log = logging.getLogger("thinwire")
PROBE = Layout.flat(1000)  # payloads of which have one size on ranks whose compressors are one


def meet(
    method: Method,
    group: dist.ProcessGroup,
    settings: Settings,
    seed: int,
    fields: Fields,
    optimizer: Optimizer | None,
    lanes: int,
) -> tuple[ProcessTransport, Runner]:
    """A transport and a runner on every rank; ValueError on all of them if they differ in method or `fields`.

    The optimizer's steps are measured where a memory of the method asks for them. Rank 0 logs the method's note.
    As many pieces of work are open as there are `lanes`.
    """
    depth = depth_of(method)
    if depth and optimizer is None:
        raise ValueError(
            f"{method.id} looks at the steps of the optimizer; write tw.ddp_hook(method, model, optimizer)"
        )
    if settings.quorum is not None and settings.quorum > dist.get_world_size(group):
        raise ValueError(
            f"quorum={settings.quorum} of {dist.get_world_size(group)} ranks can never be left; write a smaller one"
        )
    served = method.exchange.served  # servers go on without a worker
    transport = ProcessTransport(
        group,
        wanted(method, group, settings, lanes),
        edges=method.exchange.edges(dist.get_world_size(group)) if settings.drop_dead else None,
        quorum=ALONE if settings.quorum is None else settings.quorum,
        goes_on=served,
    )
    common = {
        "thinwire version": VERSION,
        "method": method.id,
        "the method's settings": method.to_json(),
        f"the bytes of {PROBE.numel} elements": str([channel.nbytes(PROBE) for channel in method.exchange.channels]),
        "seed": str(seed),
        "drop_dead": str(settings.drop_dead),
        "quorum": str(settings.quorum),
        "timeout": str(settings.timeout),
    }
    try:
        differs = transport.call(lambda comm: handshake(comm, {**common, **fields}, transport.name))
    except BaseException as error:
        transport.close(failed=True, why=f"it failed in attach: {error}")
        raise
    if differs:
        transport.close(why="it detached after 0 rounds")
        raise ValueError(differs)
    transport.introduce()
    if transport.comm.rank == 0:
        warn_of_restarts()
    if method.recipe.note and transport.comm.rank == 0:
        log.warning("%s: %s", method.id, method.recipe.note)
    waits = transport.waits
    telemetry = Telemetry(transport.now, transport.traffic, transport.comm.size, lambda: waits.seconds)
    runner = Runner(method, transport, telemetry, Motion(optimizer, depth), seed)
    known = weakref.ref(runner)  # a thread has `where`, and must not keep the runner
    transport.watch.where.rounds = lambda: 0 if (alive := known()) is None else alive.round
    return transport, runner


def wanted(method: Method, group: dist.ProcessGroup, settings: Settings, lanes: int) -> Wanted:
    """The process groups of the lanes, with a slot each or all one."""
    exchange, size = method.exchange, dist.get_world_size(group)
    name = "gloo" if settings.drop_dead else backend.name_of(group)  # nccl ends the process when a peer breaks off
    groups: Sequence[tuple[int, ...]] = exchange.groups(size)
    if settings.drop_dead:
        groups = exchange.edges(size)  # one group per edge: when one breaks, the others stay whole
    aside = method.overlap.into_forward is not None
    lanes += aside
    slots = 1 if backend.named(name).in_turn else lanes
    return Wanted(slots, tuple(groups), settings.timeout, name, lanes, aside)
