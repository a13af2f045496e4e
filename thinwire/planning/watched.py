"""Watched: a rank that is lost while ranks measure together is named, as one that is lost in training is.

Most of what ranks wait for here are plain collectives and DDP's own sums, whose errors say only that a connection was
closed. The ranks that are left then call the roll (`engine/watch.py`), and the error names those who do not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from thinwire.comm.processes import EdgeError
from thinwire.core.errors import PeerError
from thinwire.engine.meeting import Meeting
from thinwire.engine.store import Place
from thinwire.engine.watch import LOOK, Watch
from thinwire.planning.company import Company

PATIENCE = 600.0  # seconds in which all ranks must have come, as under `attach`


@contextmanager
def watched() -> Iterator[Company]:
    """The ranks of the default process group, all of which enter the block; PeerError if one of them is lost in it.

    An error of this rank's own stays as it is, and is what the others are told when they lose the connection to it.
    """
    group = dist.group.WORLD
    assert group is not None  # there are ranks
    watch = Watch(Place(group), dist.get_rank(), dist.get_world_size())
    try:
        meeting = Meeting(watch, PATIENCE, group)
        meeting.gather("plan")
        company = meeting.together(Company.of_group)
        watch.beating = False  # from here on there are connections, which break when a rank dies
        yield company
    except BaseException as error:
        if not isinstance(error, Exception) or not of_network(error):
            watch.leave(f"it raised {type(error).__name__}: {error}")
            raise
        watch.look_out(0)
        found = watch.explain(error)
        watch.alarmed.wait(2 * LOOK)  # until this rank has signed, for others that call the roll later
        raise found from error
    finally:
        watch.stop()
        watch.join(2 * LOOK)


def of_network(error: Exception) -> bool:
    """Whether it was the connection to another rank that failed; gloo's errors are known by the file that they name.

    >>> of_network(RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    True
    >>> of_network(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    if isinstance(error, PeerError | EdgeError | dist.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo/" in str(error)
