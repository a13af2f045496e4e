"""FSDP2 inside each node, and a compressed, error-fed exchange between nodes; here on CPUs, two nodes of two ranks.

torchrun --standalone --nproc-per-node 4 examples/fsdp.py
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire as tw

NODES, DEVICE = 2, "cpu"  # on GPUs write "cuda", init_process_group("cpu:gloo,cuda:nccl"), and the number of nodes


def main() -> None:
    """Train a small net on a teacher's answers, save it, and go on from there."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(DEVICE, (NODES, world // NODES), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    teacher = torch.randn(64, 1) / 8
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    wire = tw.fsdp(model, optimizer, tw.methods.ef_signsgd(), replicas=mesh["replicate"])
    torch.manual_seed(1 + rank)  # every rank draws its own data

    def train(steps: range) -> None:
        for step in steps:
            x = torch.randn(64, 64)
            loss = (model(x) - torch.tanh(x @ teacher)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 50 == 0:
                sent = wire.stats()
                print(f"step {step}  loss {loss.item():.4f}  sent {sent['bytes_sent']:,} bytes", flush=True)

    train(range(101))
    name = torch.tensor([int.from_bytes(os.urandom(7), "big")])
    dist.broadcast(name, 0)
    folder = str(Path(tempfile.gettempdir()) / f"thinwire-{int(name)}")  # the same on all ranks
    state = {"model": model.state_dict()}
    dcp.save({**state, "wire": wire}, checkpoint_id=folder)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()  # as in a new process
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    wire.load_state_dict(wire.read(folder))  # whatever the number of nodes and of shards is now
    train(range(101, 201))

    weights = torch.cat([value.full_tensor().flatten() for value in model.state_dict().values()]).detach()
    dist.all_gather(copies := [torch.empty_like(weights) for _ in range(world)], weights)
    equal = all(torch.equal(copy, weights) for copy in copies)
    if rank == 0:
        print(f"{wire.stats()['ratio']:.1f} times less between nodes than a float32 all-reduce of the shards")
        print(f"replicas bitwise equal: {equal}")
    wire.detach()
    dist.barrier()  # gloo aborts now and then when one rank tears down while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
