"""A plain PyTorch loop on several ranks whose gradients travel as 4-bit QSGD payloads. README shows the diff.

torchrun --standalone --nproc-per-node 2 examples/plain_loop.py
"""

import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw

q = tw.compressors.Qsgd(bits=4)


def main() -> None:
    """Train a small net on a teacher's answers."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    teacher = torch.randn(32, 1)
    torch.manual_seed(1 + rank)  # every rank draws its own data
    sent = 0
    for step in range(200):
        x = torch.randn(64, 32)
        loss = (model(x) - torch.tanh(x @ teacher)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for i, p in enumerate(model.parameters()):
            mine = q.encode(p.grad, key=tw.Key(step=step, rank=rank, bucket=i)).data
            dist.all_gather(peers := [torch.empty_like(mine) for _ in range(world)], mine)
            p.grad = torch.stack([q.decode(tw.Payload(m), tw.Layout.of([("", p)])) for m in peers]).mean(0).view_as(p)
            sent += mine.numel() * (world - 1)
        optimizer.step()
        if rank == 0 and step % 50 == 49:
            print(f"step {step + 1}  loss {loss.item():.4f}  sent {sent:,} bytes", flush=True)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_gather(copies := [torch.empty_like(weights) for _ in range(world)], weights)
    equal = all(torch.equal(copy, weights) for copy in copies)
    if rank == 0:
        print(f"replicas bitwise equal: {equal}")
    dist.barrier()  # gloo aborts now and then when one rank tears down while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
