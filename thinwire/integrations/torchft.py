"""Ranks that come and go, with torchft's `Manager` and lighthouse: `pip install thinwire[torchft]`.

The lighthouse knows who is alive, and says who takes part in a round. Each replica is one process with a manager,
which makes a process group of those who do. thinwire exchanges pseudo-gradients over that group with any method that
has an outer loop, in `quorum` rounds (`engine/schedules/quorum.py`).

    lighthouse = torchft.lighthouse(quorum=2, grace=5.0)                  # in one process, or `torchft_lighthouse`

    manager = torchft.manager("http://host:29510", quorum=2)              # in every replica
    with torchft.outer(model, optimizer, method, manager=manager) as wire:
        for batch in batches:
            loss(model, batch).backward()
            wire.samples(len(batch))
            optimizer.step()
            optimizer.zero_grad()

torchft's own checkpoints are not used: a replica that comes gets its state over the new process group.
"""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

import torch.distributed as dist

from thinwire.core.errors import PeerError
from thinwire.engine.crew import Crew, Crews
from thinwire.engine.member import Member, check_membership
from thinwire.engine.misuse import check_method_type, check_model, tuple_of
from thinwire.engine.optimizers import check_free, followed
from thinwire.engine.settings import Settings

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from thinwire.core.method import Method

FOUND = 100.0  # milliseconds between looks of the lighthouse at who has come
_stores: weakref.WeakKeyDictionary[Any, dist.TCPStore] = weakref.WeakKeyDictionary()  # each lives as its manager does


def lighthouse(*, quorum: int, grace: float = 5.0, alive: float = 5.0, bind: str = "[::]:0") -> Any:
    """A lighthouse in this process, with an `address()` for `manager` and a `shutdown()`.

    A round begins when everybody of the last one has come; or else when at least `quorum` replicas have come, more
    than half of those alive, and either all of those alive have, or `grace` seconds have passed since the first did.
    A replica that was not heard of for `alive` seconds counts as dead.
    """
    if quorum < 1 or grace < 0 or alive <= 0:
        raise ValueError(
            f"lighthouse(quorum={quorum}, grace={grace}, alive={alive}): write quorum >= 1, grace >= 0 and alive > 0"
        )
    coordination = _torchft("torchft.coordination")
    return coordination.LighthouseServer(
        bind=bind,
        min_replicas=quorum,
        join_timeout_ms=round(1e3 * grace),
        quorum_tick_ms=round(FOUND),
        heartbeat_timeout_ms=round(1e3 * alive),
    )


def manager(
    lighthouse: str,
    *,
    quorum: int,
    name: str = "replica",
    hostname: str | None = None,
    meeting: float = 10.0,
    quorum_timeout: float = 3600.0,
) -> Any:
    """A torchft `Manager` for a replica of one process, with a store of its own.

    The others reach this one at `hostname`. A process group that is not made in `meeting` seconds, because somebody
    died meanwhile, is given up for another; a quorum that does not come together in `quorum_timeout` is an error.
    """
    torchft = _torchft("torchft")
    host, soon = hostname or socket.gethostname(), timedelta(seconds=meeting)
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    made = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=soon),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=quorum,
        use_async_quorum=False,
        timeout=soon,
        quorum_timeout=timedelta(seconds=quorum_timeout),
        connect_timeout=soon,
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=name,
        hostname=host,
    )
    _stores[made] = store
    return made


def outer(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: Method,
    *,
    manager: Any,
    min_size: int | None = None,
    exclude: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 60.0,
) -> Member:
    """Train with `method`, which has an outer loop, among the replicas that `manager` finds; as `thinwire.attach`.

    It returns when this replica has met others. If they are in the midst of training, that is in their next round,
    and this replica has their anchor, outer state, buffers and optimizer then, and has taken part in the round.
    A replica from which nothing comes for `timeout` seconds is lost; one that was killed is noticed at once.
    """
    check_method_type(method, "torchft.outer(model, optimizer, {}, manager=manager)")
    check_model(model)
    single = followed(optimizer, method)
    check_free(single)
    check_membership(method)
    lanes = max((method.lanes(p.device.type) for p in model.parameters() if p.requires_grad), default=1)
    crews = Managed(manager, lanes, timeout)
    settings = Settings(min_size, tuple_of(exclude), seed)
    return Member(model, single, method, crews, settings)


@final
class Managed(Crews):
    """Crews from a torchft `Manager`."""

    def __init__(self, manager: Any, lanes: int, timeout: float) -> None:
        process_group = _torchft("torchft.process_group")
        self._manager, self._lanes, self._timeout = manager, lanes, timeout
        self._group = manager._pg  # as torchft's own wrappers find it
        if not isinstance(self._group, process_group.ProcessGroupGloo):
            raise ValueError(
                f"the manager's process group is {type(self._group).__name__}, and thinwire exchanges over gloo; "
                "write Manager(pg=torchft.ProcessGroupGloo(), ...)"
            )
        self._crew: Crew | None = None

    def assemble(self) -> Crew:
        """A quorum; its group is another one when somebody has come or gone, or when the last round failed."""
        try:
            self._manager.start_quorum(allow_heal=False)
            self._manager.wait_quorum()
        except TimeoutError as error:
            raise TimeoutError(
                "no quorum has come together in the manager's quorum_timeout; start the lighthouse, and as many "
                f"replicas as it asks for ({error})"
            ) from error
        if failed := self._manager.errored():
            raise PeerError(f"no process group could be made: {failed.original_exception}")
        group = self._group.parent
        if self._crew is None or self._crew.group is not group:
            self._close()
            self._crew = Crew(group, self._lanes, self._timeout)
        return self._crew

    def dissolve(self, error: Exception) -> None:
        """The manager asks for another group next time. The connections of this one close with its last reference."""
        self._manager.report_error(error)
        self._close()
        self._group.shutdown()
        gc.collect()  # an error's traceback may refer to the group
        self._manager.should_commit()

    def settled(self, rounds: int) -> None:
        """The manager's steps are our rounds: a replica that has just come has as many as the others.

        Whether the manager would commit does not matter: it does not count replicas that come with this round.
        """
        self._manager.should_commit()
        self._manager.load_state_dict({"step": rounds, "batches_committed": self._manager.batches_committed()})

    def leave(self) -> None:
        """The lighthouse hears of this replica no longer."""
        self._close()
        self._group.shutdown()
        self._manager.shutdown(wait=False)

    def _close(self) -> None:
        if self._crew is not None:
            self._crew.close()
        self._crew = None


def _torchft(module: str) -> Any:
    """A module of torchft, which is imported when it is needed."""
    import importlib  # noqa: PLC0415  (beside what it is used for)

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{module} cannot be imported ({error}); write pip install 'thinwire[torchft]'") from error
