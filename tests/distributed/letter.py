"""README's diff to the letter: no `with`, no `detach`. The first argument says how it ends."""

from __future__ import annotations

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw
from thinwire.engine import watch


def main() -> tw.Wire:
    """Train for three steps, and end."""
    how, method, port = sys.argv[1:4]
    watch.LOOK = 0.002  # a thread that is nearly always inside the store is the hard case
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
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
    wire = main()  # a script of the user's holds it to the end
