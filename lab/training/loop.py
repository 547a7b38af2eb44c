"""What all trainings share: schedule, optimiser, seed, progress, and going on after a stop."""

import math
import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import torch
from rich.console import Console
from rich.progress import Progress as Bar
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError, SettingError

WARMUP = 0.03
FINAL_LEARNING_RATE = 0.02
LINES = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How long a training lasts: `steps` of `tokens` each, cut short after `minutes`."""

    steps: int
    tokens: int
    learning_rate: float
    minutes: float = math.inf


@dataclass(slots=True)
class TrainingProgress:
    """Where a training stands; `fraction` grows from 0 to 1 and drives every schedule.

    Being the larger of the share of steps and the share of time, it ends a training within its
    time on a slow machine too, with the learning rate all the way down.
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
        """What training.json says about any training."""
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "final_loss": round(self.loss, 5),
        }

    def report(self, detail: str) -> None:
        """One line: step, loss, tokens a second, time."""
        speed = self.tokens / self.seconds
        self.console.print(
            f"{self.name} step {self.steps:>5}/{self.budget.steps}  {detail}  "
            f"{speed:>9,.0f} tok/s  {self.seconds:6.1f} s",
            highlight=self.console.is_terminal,
            soft_wrap=True,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StateFile:
    """Where a training is kept every so many steps; `identity` says what it is a training of."""

    path: Path
    every: int
    identity: str

    def restore(self, state: "State") -> None:
        """Take up what is kept, if anything. Raises CheckpointError for another training's."""
        if not self.path.exists():
            return
        kept: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        if kept["identity"] != self.identity:
            raise CheckpointError(
                f"{self.path}: of a training with other options: remove it or name a new "
                "--output-dir"
            )
        with torch.no_grad():
            for name, parameter in _trainable(state.model).items():
                parameter.copy_(kept["parameters"][name])
        state.optimiser.load_state_dict(kept["optimiser"])
        progress = state.progress
        progress.steps, progress.tokens = kept["steps"], kept["tokens"]
        progress.loss = kept["loss"]
        progress.started -= kept["seconds"]

    def keep(self, state: "State") -> None:
        """Write where the training stands, whole or not at all."""
        progress = state.progress
        kept = {
            "identity": self.identity,
            "parameters": {name: p.detach() for name, p in _trainable(state.model).items()},
            "optimiser": state.optimiser.state_dict(),
            "steps": progress.steps,
            "tokens": progress.tokens,
            "loss": progress.loss,
            "seconds": progress.seconds,
        }
        unfinished = self.path.with_suffix(".part")
        torch.save(kept, unfinished)
        os.replace(unfinished, self.path)


@dataclass(frozen=True, slots=True)
class State:
    """What changes while a model is trained."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    progress: TrainingProgress


Batch = TypeVar("Batch", contravariant=True)


class LossOf(Protocol[Batch]):
    """A scalar loss of a batch, and the number of tokens that it read."""

    def __call__(self, batch: Batch, /) -> tuple[Tensor, int]: ...


def train(
    model: nn.Module,
    name: str,
    budget: Budget,
    batches_from: Callable[[int], Iterator[Batch]],
    loss_of: LossOf[Batch],
    *,
    on_fraction: Callable[[float], None] = lambda fraction: None,
    on_report: Callable[[], str] = lambda: "",
    state_file: StateFile | None = None,
) -> TrainingProgress:
    """Minimises the loss over the budget; master weights and optimiser state are float32.

    `batches_from` gives the batches of that step and all later ones; `on_fraction` is called before
    every step with the fraction of the training that is done, `on_report` adds to a line of the
    report. With a `state_file` a training that was stopped goes on, on the same batches.
    """
    parameters = list(_trainable(model).values())
    optimiser = _optimiser(parameters, budget.learning_rate)
    progress = TrainingProgress(budget, name)
    state = State(model, optimiser, progress)
    if state_file is not None:
        state_file.restore(state)
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
        if progress.steps % max(1, budget.steps // LINES) == 0:
            # The only point that waits for the device.
            progress.loss = loss.item()
            if not math.isfinite(progress.loss):
                raise SettingError(
                    f"{name}: the loss is {progress.loss}: ask for a smaller learning rate"
                )
            progress.report(f"loss {progress.loss:.4f}{on_report()}")
        if state_file is not None and progress.steps % state_file.every == 0:
            state_file.keep(state)
    progress.finished = time.monotonic()
    if state_file is not None:
        state_file.keep(state)
    return progress


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
        help="Tiny sizes, to see that everything runs.",
    )  # fmt: skip


def place(model: nn.Module, device: torch.device) -> None:
    """Moves a model to the device, in evaluation mode."""
    model.to(device).train(False)


def autocast(device: torch.device) -> torch.autocast:
    """bf16 matrix products on a GPU; plain float32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def _with_bar(progress: TrainingProgress) -> Iterator[None]:
    """Counts until the budget is spent, under a progress bar where there is a terminal."""
    console = progress.console
    with Bar(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(progress.name, total=1.0)
        while progress.fraction < 1:
            bar.update(task, completed=progress.fraction)
            yield


def _schedule(fraction: float) -> float:
    """Linear warm-up, then half a cosine down to `FINAL_LEARNING_RATE`."""
    if fraction < WARMUP:
        return (fraction + 1e-3) / (WARMUP + 1e-3)
    done = (fraction - WARMUP) / (1 - WARMUP)
    cosine = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return FINAL_LEARNING_RATE + (1 - FINAL_LEARNING_RATE) * cosine


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _optimiser(parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.AdamW:
    """Weight decay for matrices only: not for norms, not for a layer's scalar."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = parameters[0].is_cuda
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=fused)
