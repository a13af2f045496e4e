"""What the scripts beside this file share: the time of work on a GPU, and of each of its kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch


def milliseconds(run: Callable[[], object]) -> float:
    """The median of 10 runs, captured, so that launches cost little."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times: list[float] = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[2:])[5]


def kernels(run: Callable[[], object]) -> str:
    """Microseconds of each kernel of a run; torch's own are left out."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return ", ".join(f"{e.name} {e.device_time:.0f}" for e in events if "at::native" not in e.name)
