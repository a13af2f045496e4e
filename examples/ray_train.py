"""Ray Train: two workers, DDP, and the hook that makes its gradients travel in 4 bits per element.

python examples/ray_train.py
"""

import tempfile
from pathlib import Path

import ray
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn

import thinwire as tw


def train(config: dict) -> None:
    """What every worker runs: 30 steps, with a checkpoint after 15 of them."""
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    teacher = torch.randn(64, 1) / 8
    model = prepare_model(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    wire, hook = tw.ddp_hook(tw.methods.ecq_sgd(levels=4), model, optimizer)
    model.register_comm_hook(wire, hook)
    first, losses = 0, []
    if config["resume"]:
        state = torch.load(Path(config["resume"]) / f"rank{rank}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        wire.load_state_dict(state["wire"])  # this rank's own residuals
        first = state["step"]
    for step in range(first, 30):
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(2 * step + rank))
        loss = (model(x) - torch.tanh(x @ teacher)).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (14, 29):
            with tempfile.TemporaryDirectory() as folder:  # Ray puts the files of all ranks together
                kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "wire": wire.state_dict()}
                tw.save({**kept, "step": step + 1}, Path(folder) / f"rank{rank}.pt")
                figures = {"step": step + 1, "first": losses[0], "loss": losses[-1], **wire.stats()}
                ray.train.report(figures, checkpoint=Checkpoint.from_directory(folder))
    wire.detach()


def fit(resume: str = "") -> ray.train.Result:
    """A run of two workers, from the start or from a checkpoint."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"resume": resume},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=tempfile.mkdtemp()),
    )
    return trainer.fit()


def weights_and_residuals(checkpoint: Checkpoint) -> list[torch.Tensor]:
    """All that the ranks have saved, in one order."""
    states = [torch.load(Path(checkpoint.path) / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    memories = [state["wire"][f"rank{rank}"]["tensors"] for rank, state in enumerate(states)]
    return [tensor for part in (*memories, states[0]["model"]) for _, tensor in sorted(part.items())]


def main() -> None:
    """Train, resume from the middle, and compare."""
    ray.init(num_cpus=2, include_dashboard=False)
    whole = fit()
    middle = next(checkpoint for checkpoint, figures in whole.best_checkpoints if figures["step"] == 15)
    resumed = fit(middle.path)
    pairs = zip(weights_and_residuals(whole.checkpoint), weights_and_residuals(resumed.checkpoint), strict=True)
    print(f"loss {whole.metrics['first']:.2f} -> {whole.metrics['loss']:.2f}")
    print(f"{whole.metrics['ratio']:.1f} times less than a float32 all-reduce")
    print(f"resumed run bitwise equal: {all(torch.equal(a, b) for a, b in pairs)}")
    ray.shutdown()


if __name__ == "__main__":
    main()
