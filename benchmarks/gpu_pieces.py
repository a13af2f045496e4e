"""A step of GPT-2 small between four hosts that share a GPU, with pieces of several sizes, and where its time goes.

    sudo python benchmarks/gpu_pieces.py [--rate 10gbit,1gbit] [--trace FOLDER] ID[/MB[/IN_FLIGHT]] ...

The lines are those of benchmarks/data/gpu-pieces.csv, which also says on what machine, when, at which commit and
with MPS or without it they were measured. `none` is a step without communication. Without MB and IN_FLIGHT a method
has the pieces that it has by default. A line is the median of four steps, each as long as that of the slowest rank.
With --trace, what rank 0's lanes did in the last step at each rate is written as a trace file, which Perfetto opens.
Ranks that share the GPU through MPS (`nvidia-cuda-mps-control -d` before this) run beside each other; without it they
take turns.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim import SGD

import thinwire as tw
from thinwire.lab import gpt2
from thinwire.lab.bench_hosts import FREE, GPU_BATCH, SEQUENCE, Contestant, over_ranks, reshape, sample
from thinwire.lab.bench_step import done
from thinwire.lab.launch import Say, launch
from thinwire.lab.net import Network

HOSTS, STEPS = 4, 5


def wanted(job: str) -> tw.Method | None:
    """The method of a job, with its pieces."""
    name, _, sizes = job.partition("/")
    if name == "none":
        return None
    megabytes, _, open_ = sizes.partition("/")
    size = float(megabytes) if megabytes else None
    overlap = tw.Overlap(bucket_mb=size, chunk_mb=size)
    if open_:
        overlap = replace(overlap, in_flight=int(open_))
    return replace(tw.method(name), overlap=overlap)


def steps(say: Say, jobs: list[str], rates: list[str], folder: str | None) -> None:
    """What each rank does."""
    shape = gpt2.Shape()
    words = gpt2.text(shape, GPU_BATCH, SEQUENCE, dist.get_rank()).cuda()
    whole = gpt2.Gpt2(shape).cuda()
    for job in jobs:
        net, method = copy.deepcopy(whole), wanted(job)
        optimizer = SGD(net.parameters(), lr=1e-3)
        contestant = Contestant(done(gpt2.stepper(net, words, optimizer), "cuda"))
        with ExitStack() as stack:
            wire = None if method is None else stack.enter_context(tw.attach(net, optimizer, method))
            reshape(FREE)
            for _ in range(contestant.warmup):
                contestant.step()
            for rate in rates:
                reshape(rate)
                seconds = over_ranks([sample(contestant) for _ in range(STEPS)], dist.ReduceOp.MAX)
                if dist.get_rank() == 0:
                    open_ = "" if method is None else method.lanes("cuda")
                    say(f"{open_},{job},{rate},{1e3 * statistics.median(seconds[1:]):.0f}")
                    if folder is not None and wire is not None:
                        wire.trace(Path(folder) / f"{job.replace('/', '-')}-{rate}.json")
            reshape(FREE)
        del net, optimizer, contestant, wire
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    """Start the hosts."""
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("jobs", nargs="+")
    read.add_argument("--rate", default="10gbit,1gbit")
    read.add_argument("--trace")
    given = read.parse_args()
    rates = given.rate.split(",")
    for job in given.jobs:
        wanted(job)
    print("in_flight,job,rate,ms")
    with Network(HOSTS, rates[0]) as network:
        launch(steps, HOSTS, given.jobs, rates, given.trace, gpu=True, hosts=network, timeout=1200.0)


if __name__ == "__main__":
    main()
