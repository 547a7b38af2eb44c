"""What all trainings share: options, schedule, optimiser, progress, and continuing after a stop."""

import math
import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import click
import torch
from rich.console import Console
from rich.progress import Progress as Bar
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError, SettingError

WARMUP = 0.03  # the share of a training
FINAL_LEARNING_RATE = 0.02  # of the highest
REPORTS = 40  # lines of a training
Batch = TypeVar("Batch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A training's length: `steps` of `tokens` each, or less where `minutes` end it."""

    steps: int
    tokens: int
    learning_rate: float
    minutes: float = math.inf


@dataclass(slots=True)
class TrainingProgress:
    """How far a training is; `fraction` grows from 0 to 1 and drives every schedule.

    It is the larger of the shares of steps and of time, so that a training also ends in time on a
    slow machine, with the lowest learning rate.
    """

    budget: Budget
    name: str
    steps: int = 0
    tokens: int = 0
    loss: float = math.nan
    started: float = field(default_factory=time.monotonic)
    finished: float | None = None
    console: Console = field(default_factory=Console)

    @property
    def seconds(self) -> float:
        return (self.finished or time.monotonic()) - self.started

    @property
    def fraction(self) -> float:
        return max(self.steps / self.budget.steps, self.seconds / 60 / self.budget.minutes)

    def summary(self) -> dict[str, int | float]:
        """Return what training.json has of every training."""
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "final_loss": round(self.loss, 5),
        }

    def report(self, detail: str) -> None:
        """Print step, loss, tokens a second and time in one line."""
        self.console.print(
            f"{self.name} step {self.steps:>5}/{self.budget.steps}  {detail}  "
            f"{self.tokens / self.seconds:>9,.0f} tok/s  {self.seconds:6.1f} s",
            highlight=self.console.is_terminal,
            soft_wrap=True,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StateFile:
    """A file that a training is saved to, `every` so many steps.

    `identity` is a hash of everything that the training depends on.
    """

    path: Path
    every: int
    identity: str

    def restore(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, progress: TrainingProgress
    ) -> None:
        """Load the state, if there is one. Raises CheckpointError for another training's."""
        if not self.path.exists():
            return
        state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        if state["identity"] != self.identity:
            raise CheckpointError(
                f"{self.path}: of a training with other options: remove it or name a new "
                "--output-dir"
            )
        with torch.no_grad():
            for name, parameter in trainable(model).items():
                parameter.copy_(state["parameters"][name])
        optimiser.load_state_dict(state["optimiser"])
        progress.steps, progress.tokens = state["steps"], state["tokens"]
        progress.loss = state["loss"]
        progress.started -= state["seconds"]

    def save(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, progress: TrainingProgress
    ) -> None:
        """Write the state, whole or not at all."""
        state = {
            "identity": self.identity,
            "parameters": {name: p.detach() for name, p in trainable(model).items()},
            "optimiser": optimiser.state_dict(),
            "steps": progress.steps,
            "tokens": progress.tokens,
            "loss": progress.loss,
            "seconds": progress.seconds,
        }
        partial = self.path.with_suffix(".part")
        torch.save(state, partial)
        os.replace(partial, self.path)


def train(
    model: nn.Module,
    name: str,
    budget: Budget,
    batches_from: Callable[[int], Iterator[Batch]],
    loss_of: Callable[[Batch], tuple[Tensor, int]],
    *,
    on_fraction: Callable[[float], None] = lambda fraction: None,
    on_report: Callable[[], str] = lambda: "",
    state_file: StateFile | None = None,
) -> TrainingProgress:
    """Minimise the loss over the budget; master weights and optimiser state are float32.

    `batches_from` yields the batches of a step and all later ones. `loss_of` returns a batch's
    scalar loss and its number of tokens. `on_fraction` is called before every step, `on_report`
    adds to a line of the report. With a `state_file` a stopped training continues on the same
    batches.
    """
    parameters = list(trainable(model).values())
    optimiser = _optimiser(parameters, budget.learning_rate)
    progress = TrainingProgress(budget, name)
    if state_file is not None:
        state_file.restore(model, optimiser, progress)
    batches = batches_from(progress.steps)
    for _ in _with_bar(progress):
        on_fraction(progress.fraction)
        for group in optimiser.param_groups:
            group["lr"] = budget.learning_rate * _schedule(progress.fraction)
        loss, tokens = loss_of(next(batches))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        progress.steps += 1
        progress.tokens += tokens
        if progress.steps % max(1, budget.steps // REPORTS) == 0:
            progress.loss = loss.item()  # the only point that waits for the device
            if not math.isfinite(progress.loss):
                raise SettingError(f"{name}: the loss is {progress.loss}: lower the learning rate")
            progress.report(f"loss {progress.loss:.4f}{on_report()}")
        if state_file is not None and progress.steps % state_file.every == 0:
            state_file.save(model, optimiser, progress)
    progress.finished = time.monotonic()
    if state_file is not None:
        state_file.save(model, optimiser, progress)
    return progress


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def seed_everything(seed: int) -> None:
    """Seed Python and torch, on every device."""
    random.seed(seed)
    torch.manual_seed(seed)


def chosen_device(name: str) -> str:
    """Return "cpu" or "cuda". Raises SettingError where there is no GPU."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingError("--device cuda: this machine has no GPU that torch can use")
    return name


def environment(device: torch.device) -> dict[str, str]:
    """Return what a training ran on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def smoke_option(defaults: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds --smoke, which replaces the defaults of sizes by tiny ones."""

    def use_defaults(context: click.Context, _: click.Parameter, smoke: bool) -> None:
        if smoke:
            context.default_map = defaults

    return click.option(
        "--smoke", is_flag=True, is_eager=True, expose_value=False, callback=use_defaults,
        help="Use tiny sizes, to see that everything runs.",
    )  # fmt: skip


def autocast(device: torch.device) -> torch.autocast:
    """Return a context of bf16 matrix products on a GPU, of float32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def _with_bar(progress: TrainingProgress) -> Iterator[None]:
    """Count until the budget is spent, under a progress bar where there is a terminal."""
    console = progress.console
    with Bar(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(progress.name, total=1.0)
        while progress.fraction < 1:
            bar.update(task, completed=progress.fraction)
            yield


def _schedule(fraction: float) -> float:
    """Return a linear warm-up, then half a cosine down to `FINAL_LEARNING_RATE`."""
    if fraction < WARMUP:
        return (fraction + 1e-3) / (WARMUP + 1e-3)
    done = (fraction - WARMUP) / (1 - WARMUP)
    cosine = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return FINAL_LEARNING_RATE + (1 - FINAL_LEARNING_RATE) * cosine


def _optimiser(parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.AdamW:
    """Return an optimiser with weight decay for matrices, not for norms or a layer's scalar."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=learning_rate, betas=(0.9, 0.95), fused=parameters[0].is_cuda
    )
