"""What all reproductions that train on images check: the task, and that numbers are given and positive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from thinwire.lab import tasks
from thinwire.lab.reproduce.base import Settings
from thinwire.lab.tasks import Task


def task_of(name: str, settings: Settings, epochs: Mapping[str, int]) -> Task:
    """The task, which must be one for which `epochs` has a number."""
    task = tasks.get(settings.task)
    if task.name not in epochs:
        raise ValueError(f"{name} trains on images, not on {task.name}; write --task {' or '.join(epochs)}")
    return task


def filled(settings: Settings, task: Task, epochs: int, seeds: int) -> Settings:
    """The settings with these epochs and seeds where none are given, and the task's folder."""
    epochs = epochs if settings.epochs is None else settings.epochs
    seeds = seeds if settings.seeds is None else settings.seeds
    if epochs < 1 or seeds < 1 or settings.jobs < 1:
        raise ValueError("epochs, seeds and jobs are positive numbers; write --epochs 20 --seeds 3 --jobs 2")
    return replace(settings, epochs=epochs, seeds=seeds, data=task.locate(settings.data))
