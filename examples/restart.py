"""A run that torchrun starts again from its last checkpoint when a rank is lost: kill one of its processes and see.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/restart.py
"""

import os
import sys
import tempfile
from pathlib import Path
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw

STEPS, EVERY = 2000, 100


def main(path: Path) -> None:
    """Take up the checkpoint at `path` if there is one, and save there after every 100 steps."""
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    start = 0
    with tw.attach(model, optimizer, tw.methods.ef_signsgd(), min_size=0) as wire:
        if path.exists():
            saved = torch.load(path, weights_only=True)
            start = saved["step"]
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            wire.load_state_dict(saved["wire"])
        for step in range(start, STEPS):
            draw = torch.Generator().manual_seed(
                1000 * step + rank
            )  # the data depends on the step and the rank alone
            x = torch.randn(64, 64, generator=draw)
            loss = (model(x).squeeze(1) - x[:, 0].tanh()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % EVERY == 0:
                wires = wire.gather_state()  # of all ranks, so that one file holds one moment of the run
                if rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "wire": wires}
                    tw.save({"step": step + 1, **state}, path)
                    print(f"attempt {attempt}  step {step + 1}  loss {loss.item():.4f}", flush=True)
    if rank == 0:
        weights = nn.utils.parameters_to_vector(model.parameters()).detach()
        print(f"started at step {start}; weights {crc32(weights.numpy().tobytes()):08x}")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.gettempdir()) / "thinwire-restart.pt")
