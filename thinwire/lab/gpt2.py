"""GPT-2 small's shapes: a transformer of 124,439,808 parameters, and a step of training it on words drawn at random.

What it learns does not matter here; its tensors, and how long a step computes, are those that people train.

    x    = W_e[words] + W_p                       50257 words, 1024 places, width 768
    x   += attention(norm(x));  x += mlp(norm(x))     12 times; 12 heads; 4 * 768 hidden units, GELU
    logits = norm(x) W_e^T                        the embedding is the head, too

Reference: Radford, Wu, Child, Luan, Amodei, Sutskever, "Language models are unsupervised multitask learners", 2019.

Departs from the paper: no dropout, and attention is torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.optim import Optimizer

INIT = 0.02


@final
@dataclass(frozen=True)
class Shape:
    """How large the model is."""

    words: int = 50257
    layers: int = 12
    width: int = 768
    heads: int = 12
    context: int = 1024


@final
class Block(nn.Module):
    """One layer: attention, then a perceptron, each around a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.attended = nn.Linear(shape.width, shape.width)
        self.before_mlp = nn.LayerNorm(shape.width)
        self.hidden = nn.Linear(shape.width, 4 * shape.width)
        self.out = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        seen = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attended(seen.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.out(f.gelu(self.hidden(self.before_mlp(x)), approximate="tanh"))
        return out


@final
class Gpt2(nn.Module):
    """The whole model, equal on all ranks with one seed."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.words, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        noise = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INIT, generator=noise)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, text: Tensor) -> Tensor:
        """The mean loss of predicting every word of (batch, length + 1) from those before it."""
        known, wanted = text[:, :-1], text[:, 1:]
        x = self.words(known) + self.places.weight[: known.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = f.linear(self.norm(x), self.words.weight)
        return f.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())


def text(shape: Shape, batch: int, length: int, seed: int) -> Tensor:
    """Words drawn at random: as many rows as the batch has, one word longer than what is predicted."""
    if not 0 < length <= shape.context:
        raise ValueError(f"a sequence of {length} words does not fit; write --sequence {shape.context} or less")
    return torch.randint(shape.words, (batch, length + 1), generator=torch.Generator().manual_seed(seed))


def stepper(net: nn.Module, words: Tensor, optimizer: Optimizer) -> Callable[[], None]:
    """Forward in bf16, backward, and the optimizer's step."""

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(words.device.type, dtype=torch.bfloat16):
            loss = net(words)
        torch.autograd.backward(loss)
        optimizer.step()

    return step
