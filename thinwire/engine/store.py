"""Store: where ranks meet before they have connections of their own, through one connection of this process.

torchrun keeps one store for all attempts of a job, unless it is told otherwise. Its keys outlive the processes that
wrote them, and a rank of the second attempt that reads one of the first waits for a process that is gone. All keys
that thinwire writes, and those of the groups that it makes, therefore lie in a place that only this attempt has.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any, cast, final

import torch.distributed as dist

TRY = 12.0  # seconds that the first try to connect may take; a name server that does not answer costs 5 to 10
FRESH = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --rdzv-backend=c10d ..."  # a store for each attempt
RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
Ended = Callable[[], bool]
log = logging.getLogger("thinwire")


class StoreError(RuntimeError):
    """The store does not answer."""


@cache
def warn_of_restarts() -> None:
    """Say how to start a job that torchrun may start again: its own default group meets old keys as well."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and int(os.environ.get(RESTARTS, "0")) > 0:
        log.warning(
            "torchrun has one store for all attempts, and init_process_group of the next may wait for ranks that are "
            "gone; write %s",
            FRESH,
        )


def attempt() -> str:
    """The name of this attempt of the job. torchrun does not count restarts because a node has come or gone."""
    return f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}of{dist.get_world_size()}"


def attempt_store() -> dist.Store:
    """The store that the process group was made with, in the place of this attempt."""
    return dist.PrefixStore(attempt(), dist.distributed_c10d._get_default_store())


@final
class Connection:
    """A connection of our own to the store, which others that wait on theirs do not block; opened when needed.

    Every connection costs the store's host a look at the name of its other end, which takes seconds where a name
    server does not answer. So there is one per process, and not one per attach.
    """

    def __init__(self, default: dist.Store) -> None:
        self.of = weakref.ref(default)
        self._own: dist.Store | None = None
        self._lock = threading.Lock()

    def open(self, default: dist.Store, ended: Ended) -> dist.Store:
        """The connection; RuntimeError if the host of the store is gone. A host that hangs is waited for."""
        limit = TRY
        while True:
            with self._lock:
                if self._own is None:
                    default.check(["thinwire"])  # by the user's connection: the end of its host is noticed at once
                    self._own = _clone(default, limit)
                if self._own is not None:
                    return self._own
            if ended():
                raise StoreError("this attach has ended")
            limit *= 2


def _clone(default: dist.Store, limit: float) -> dist.Store | None:
    """Another connection, or None if it took too long. torch before 2.8 makes none, nor do some stores."""
    store: Any = default
    remote = isinstance(getattr(store, "_underlying_non_prefix_store", None), dist.TCPStore)
    if not remote:
        with suppress(AttributeError, RuntimeError):
            return cast("dist.Store", store.clone())
        return default
    usual = store.timeout
    store.set_timeout(timedelta(seconds=limit))  # which is for connecting, too, and usually 30 minutes
    try:
        own: dist.Store = store.clone()
    except AttributeError:
        return default
    except dist.DistError:
        return None
    finally:
        store.set_timeout(usual)
    own.set_timeout(usual)
    return own


_connections: list[Connection] = []  # that of the last process group
_opened: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)  # attaches, by group


@final
class Place:
    """A part of the store for one attach on `group`.

    Ranks of a group attach in the same order, so the group's name and a count identify an attach on all of them.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        default = dist.distributed_c10d._get_default_store()
        if not _connections or _connections[0].of() is not default:
            _connections[:] = [Connection(default)]
        self._default, self._connection = default, _connections[0]
        name = group.group_name
        self._name = f"thinwire/{attempt()}/{name}/{next(_opened[name])}"

    def __call__(self, ended: Ended) -> dist.Store:
        """Open it; this waits for the store's host unless the attach has ended."""
        return dist.PrefixStore(self._name, self._connection.open(self._default, ended))
