"""Which tests share a worker of pytest-xdist: those with several processes each run one at a time.

They are in two groups: files that compute, and files that mostly wait, for a rank that is missed or for a slow link.
A file whose tests read their facts from the same runs, or look at pages in the same browser, stays together, so that
none is made twice. All other tests go to whoever is free. The marks of `--dist loadgroup` would say the same, but
xdist 3.8 loses them with pytest 9.2.
"""

from __future__ import annotations

from typing import final

from xdist.scheduler.loadscope import LoadScopeScheduling

WAITING = (
    "test_async_pairs",
    "test_faults",
    "test_leaving",
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
    "tests/lab/test_net",
    "tests/lab/test_reproduce_ecq_cost",
)
SHARING = (
    "tests/exchange/test_eta",
    "tests/exchange/test_gossip_pulls",
    "tests/exchange/test_gossip_sheet",
    "tests/lab/test_report_browser",
)


@final
class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """A group is one scope, and so is a file whose tests share; every other test is one by itself."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", maxsplit=1)[0]
        if path.startswith(SHARING):
            return path
        if not path.startswith(PROCESSES):
            return nodeid
        waits = path.rpartition("/")[2].removesuffix(".py") in WAITING
        return "waiting" if waits else "processes"
