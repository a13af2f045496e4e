"""README's diff to the letter: no `with`, no `detach`. Arguments: a store's port, a folder, and `how=method` pairs.

Every pair names how two ranks end, and what they train with. They are forked after the imports, which take longer
than all the rest; each ends as the interpreter ends, and its file in the folder tells its status and what it said.
"""

from __future__ import annotations

import os
import sys
import threading

import torch
import torch._dynamo  # an optimizer would import it in every rank
import torch.distributed as dist
from torch import nn

import thinwire as tw
from thinwire.engine import watch

RANKS = 2


def fork() -> tuple[str, str, int]:
    """How to end, the method and the rank; the process that was started waits for all of them and ends here."""
    for how, method in (pair.split("=") for pair in sys.argv[3:]):
        children = {}
        for rank in range(RANKS):
            file = f"{sys.argv[2]}/{how}.{rank}"
            child = os.fork()
            if not child:
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), 2)
                return how, method, rank
            children[child] = file
        for child, file in children.items():
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with open(file, "a") as said:
                said.write(f"\n{status}")
    sys.exit()


def main(how: str, method: str, rank: int) -> tw.Wire:
    """Train for three steps, and end."""
    watch.LOOK = 0.002  # a thread that is nearly always inside the store is the hard case
    store = dist.PrefixStore(how, dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wire = tw.attach(model, optimizer, tw.method(method))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        if how == "raise between" and _ == 2:
            raise RuntimeError("as planned")
        if how == "exit between" and _ == 2:
            sys.exit(3)
        optimizer.step()
    if how == "destroy":
        dist.destroy_process_group()
    if how == "exit":
        sys.exit(0)
    if how == "thread":
        threading.Thread(target=sys.exit).start()
    return wire


if __name__ == "__main__":
    wire = main(*fork())  # a script of the user's holds it to the end
