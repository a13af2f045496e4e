"""DistributedDataParallel with its gradients in 4 bits per element: one line after DDP(model).

torchrun --standalone --nproc-per-node 2 examples/ddp_hook.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817  (its usual name)

import thinwire as tw


def main() -> None:
    """Train a small net on a teacher's answers."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    teacher = torch.randn(64, 1) / 8
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)))
    model.register_comm_hook(*tw.ddp_hook(tw.methods.qsgd(bits=4), model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)  # every rank draws its own data
    for step in range(201):
        x = torch.randn(64, 64)
        loss = (model(x) - torch.tanh(x @ teacher)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_gather(copies := [torch.empty_like(weights) for _ in range(dist.get_world_size())], weights)
    equal = all(torch.equal(copy, weights) for copy in copies)
    if rank == 0:
        print(f"replicas bitwise equal: {equal}")
    dist.barrier()  # gloo aborts now and then when one rank tears down while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
