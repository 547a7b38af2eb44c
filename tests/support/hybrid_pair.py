"""A trained Qwen3.5 of three layers with an MTP layer, and how it was trained.

`PYTHONPATH=tests python tests/support/hybrid_pair.py DIR [MINUTES]` trains such a pair on a CPU.
Text and tokenizer are those of the shipped pair. The layer is trained beside the target, on states
without a gradient, to draft three tokens from its own states. The stored pair had 977 steps, after
which the losses were 0.6 for the target and 0.8 to 0.9 for drafts.
"""

import math
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, Qwen3_5ForCausalLM

from eagle_aot.lab.training.tiny.corpus import build_corpus
from eagle_aot.targets import TARGETS
from support.golden_cases import GOLDEN
from support.heads.mtp import ReferenceMtp, random_mtp, save_mtp
from support.random_pair import add_tokenizer, qwen3_5

TRAINED = GOLDEN.parent / "hybrid"
STORIES, SEED = 12_000, 5
BATCH, LENGTH, DEPTH = 12, 96, 3
RATE, LAST_RATE, WARM_UP = 3e-3, 0.03, 50


def write_hybrid_pair(directory: Path) -> tuple[Path, Path]:
    """Copy the trained target and add a tokenizer; its own checkpoint has the drafter."""
    target = shutil.copytree(TRAINED, directory / "target")
    add_tokenizer(target)
    return target, target


def new_pair() -> tuple[Qwen3_5ForCausalLM, ReferenceMtp]:
    """The sizes of random pairs, with a tied table; norms begin as 1."""
    torch.manual_seed(SEED)
    model = qwen3_5(tie_word_embeddings=True)
    layer = random_mtp(model)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *layer.named_parameters()]:
            if tensor.ndim == 1 and "norm" in name:
                tensor.fill_(float("linear_attn" in name))
        for name, tensor in layer.named_parameters():
            if tensor.ndim > 1 and not name.startswith("tables."):
                tensor.normal_(std=0.02)
    return model.train().requires_grad_(), layer.train().requires_grad_()


def batches() -> Iterator[Tensor]:
    """Yield random rows of stories, int64 [BATCH, LENGTH]."""
    tokenizer = AutoTokenizer.from_pretrained(TARGETS["gemma4-tiny"].target_dir)
    flat = build_corpus(tokenizer, STORIES, SEED, torch.device("cpu")).flat.long()
    rows = flat[: len(flat) // LENGTH * LENGTH].view(-1, LENGTH)
    while True:
        yield rows[torch.randint(len(rows), (BATCH,))]


def losses(model: Qwen3_5ForCausalLM, layer: ReferenceMtp, tokens: Tensor) -> list[Tensor]:
    """The target's loss, and those of the layer's first drafts."""
    states = model.model(tokens).last_hidden_state
    found = [loss(model.lm_head(states[:, :-1]), tokens[:, 1:])]
    states = states.detach()
    for ahead in range(1, DEPTH + 1):
        states = layer.states(tokens[:, ahead:], states[:, :-1])
        logits = states[:, :-1] @ model.lm_head.weight.detach().T
        found.append(loss(logits, tokens[:, ahead + 1 :]))
    return found


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def train(directory: Path, minutes: float) -> None:
    """Train for so long, and write the pair in bfloat16."""
    model, layer = new_pair()
    parameters = [*{id(p): p for p in (*model.parameters(), *layer.parameters())}.values()]
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.01)
    begun = 0.0
    for step, tokens in enumerate(batches()):
        begun = begun or time.monotonic()
        done = (time.monotonic() - begun) / 60 / minutes
        if done >= 1:
            break
        cosine = LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2
        optimizer.param_groups[0]["lr"] = RATE * min(1, step / WARM_UP) * cosine
        target_loss, *layer_losses = losses(model, layer, tokens)
        optimizer.zero_grad()
        (target_loss + sum(layer_losses) / 2).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    print(f"{step} steps; losses {[round(float(x), 3) for x in (target_loss, *layer_losses)]}")
    save_mtp(directory, model.to(torch.bfloat16), layer.to(torch.bfloat16))


if __name__ == "__main__":
    train(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 5.0)
