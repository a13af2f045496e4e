"""Mixed precision with a GradScaler, and a run that is stopped, saved, and resumed to the same bits.

torchrun --standalone --nproc-per-node 2 examples/amp_resume.py
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import thinwire as tw

STEPS, SAVED_AT = 60, 30


class Run:
    """What a training script keeps: the model, its optimizer, the scaler and the wire."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu")
        self.wire = tw.attach(self.model, self.optimizer, tw.methods.ef_signsgd())

    def train(self, start: int, stop: int) -> float:
        """Take steps `start` to `stop`; the data of a step depends only on the step and the rank."""
        loss = torch.zeros(())
        for step in range(start, stop):
            draw = torch.Generator().manual_seed(1000 * step + dist.get_rank())
            x = torch.randn(64, 64, generator=draw)
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (self.model(x).squeeze(1) - x[:, 0].tanh()).square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.item()

    def save(self, path: Path) -> None:
        """Write one file per rank, since residuals differ between ranks."""
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        tw.save(parts, path)

    def load(self, path: Path) -> None:
        """Go on where `save` was called."""
        saved = torch.load(path, weights_only=True)
        for name, part in self._parts().items():
            part.load_state_dict(saved[name])

    def weights(self) -> Tensor:
        """All parameters in one vector."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def _parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler, "wire": self.wire}


def main() -> None:
    """Train without a stop, then with one, and compare."""
    dist.init_process_group("gloo")
    whole = Run()
    first = whole.train(0, 1)
    last = whole.train(1, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rank{dist.get_rank()}.pt"
        stopped = Run()
        stopped.train(0, SAVED_AT)
        stopped.save(path)
        resumed = Run()
        resumed.load(path)
        resumed.train(SAVED_AT, STEPS)
    if dist.get_rank() == 0:
        print(f"step 1  loss {first:.4f}")
        print(f"step {STEPS}  loss {last:.4f}")
        print(f"resumed run bitwise equal: {torch.equal(whole.weights(), resumed.weights())}")
    for run in (whole, stopped, resumed):
        run.wire.detach()
    dist.barrier()  # gloo aborts now and then when one rank tears down while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
