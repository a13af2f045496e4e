"""Which tests share a worker of pytest-xdist: those with several processes each run one at a time.

They are in two groups: files that compute, and files that mostly wait, for a rank that is missed or for a slow link.
The worker of each group has a server that forks ranks, which imports torch for seconds; the third needs none.
A file whose tests read their facts from the same runs, or look at pages in the same browser, stays together, so that
none is made twice. All other tests go to whoever is free, a few of a file at a time: handing out one costs more than
most of them take. The marks of `--dist loadgroup` would say the same, but xdist 3.8 loses them with pytest 9.2.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, final

from xdist.scheduler.loadscope import LoadScopeScheduling

WAITING = (
    "test_async_pairs",
    "test_faults",
    "test_leaving",
    "test_membership",
    "test_misuse",
    "test_refusals",
    "test_reproduce_ecq_cost",
)
PROCESSES = (
    "tests/distributed/",
    "tests/examples/",
    "tests/cli/test_bench_hosts",
    "tests/comm/test_far",
    "tests/cli/test_race",
    "tests/cli/test_train",
    "tests/comm/test_clock_and_processes",
    "tests/core/test_types",
    "tests/lab/test_gpt2",
    "tests/lab/test_language",
    "tests/lab/test_launch",
    "tests/lab/test_net",
    "tests/lab/test_reproduce_ecq_cost",
    "tests/lab/test_text",
    "tests/lab/test_train",
    "tests/sim/test_as_processes",
)
SHARING = (
    "tests/exchange/test_eta",
    "tests/exchange/test_gossip_pulls",
    "tests/exchange/test_gossip_sheet",
    "tests/lab/test_report_browser",
)


FEW = 12


@final
class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """A group is one scope, and so is a file whose tests share; of every other file, a few tests are."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: Counter[str] = Counter()  # tests of a file
        self.scopes: dict[str, str] = {}

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a scope that is done: xdist counts what is left of all scopes of a worker whenever a test ends."""
        super().mark_test_complete(node, item_index, duration)
        work = self.assigned_work[node]
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(work[scope].values()):
            del work[scope]

    def _split_scope(self, nodeid: str) -> str:
        if nodeid not in self.scopes:
            path = nodeid.split("::", maxsplit=1)[0]
            self.scopes[nodeid] = self._scope(path)
            self.seen[path] += 1
        return self.scopes[nodeid]

    def _scope(self, path: str) -> str:
        if path.startswith(SHARING):
            return path
        if not path.startswith(PROCESSES):
            return f"{path} {self.seen[path] // FEW}"
        waits = path.rpartition("/")[2].removesuffix(".py") in WAITING
        return "waiting" if waits else "processes"
