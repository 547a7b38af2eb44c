"""What both trainings share: the schedule, the optimiser, the seed and the progress report."""

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.progress import Progress as Bar
from torch import Tensor, nn

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


def train(
    model: nn.Module,
    name: str,
    budget: Budget,
    loss_of_next_batch: Callable[[], tuple[Tensor, int]],
    on_fraction: Callable[[float], None] = lambda fraction: None,
) -> TrainingProgress:
    """Minimises the loss over the budget; master weights and optimiser state are float32.

    `loss_of_next_batch` returns a scalar loss and the number of tokens it read; `on_fraction` is
    called before every step with the fraction of the training that is done.
    """
    optimiser = _optimiser(model, budget.learning_rate)
    parameters = [p for p in model.parameters() if p.requires_grad]
    progress = TrainingProgress(budget, name)
    for _ in _with_bar(progress):
        on_fraction(progress.fraction)
        for group in optimiser.param_groups:
            group["lr"] = budget.learning_rate * _schedule(progress.fraction)
        loss, tokens = loss_of_next_batch()
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
                raise FloatingPointError(f"{name}: the loss is {progress.loss}: train more slowly")
            progress.report(f"loss {progress.loss:.4f}")
    progress.finished = time.monotonic()
    return progress


def seed_everything(seed: int) -> None:
    """Seeds Python and torch, on every device."""
    random.seed(seed)
    torch.manual_seed(seed)


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


def _optimiser(model: nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """Weight decay for matrices only: not for norms, not for a layer's scalar."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = parameters[0].is_cuda
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=fused)
