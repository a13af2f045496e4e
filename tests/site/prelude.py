"""What short blocks of the pages take for granted: a model, an optimizer, data, and a process group."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817  (as the pages have it)

import thinwire as tw

__all__ = ["DDP", "Tensor", "dist", "nn", "torch", "tw"]

rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(1 + rank)
loader = [(torch.randn(4, 8), torch.randn(4, 2)) for _ in range(12)]
batches = loader
loss_fn = nn.functional.mse_loss


def loss(net: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return loss_fn(net(data[0]), data[1])


def next_samples(n: int) -> tuple[Tensor, Tensor]:
    """A few, however many are asked for."""
    assert n > 0
    return loader[0]


def train(*_: object) -> None:
    """Twelve steps."""
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
