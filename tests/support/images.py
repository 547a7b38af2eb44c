"""Images made for tests, and the texts of transformers after them."""

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eagle_aot.artifact import ImageInputs
from eagle_aot.runtime_runner.images.prompt_image import ImagePatches, TokenizedPrompt
from support.image_pair import IMAGE, NEVER

INPUTS = ImageInputs(
    rows=[70, 140],
    hidden_size=8,
    patch_size=4,
    pooling=3,
    image_token=5,
    begin_token=6,
    end_token=7,
    never=[5],
    sees_whole=True,
    drafter_reads_images=False,
)
"""The inputs of a program that does not exist."""


def drawn(height: int, width: int, seed: int = 0) -> Image.Image:
    """Return an image with structure at several scales."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    waves = (rng.uniform(0.02, 0.3, 2) for _ in range(3))
    planes = [127.5 + 100 * np.sin(a * x + b * y + rng.uniform(0, 6)) for a, b in waves]
    noise = rng.normal(0, 15, (height, width, 3))
    return Image.fromarray(np.clip(np.stack(planes, -1) + noise, 0, 255).astype(np.uint8))


def stored(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return the image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@torch.no_grad()
def transformers_text(target_dir: Path, prompt: TokenizedPrompt, count: int) -> list[int]:
    """Return the greedy text of `count` tokens after a prompt."""
    inputs = transformers_inputs(prompt, [])
    whole = transformers_model(target_dir).generate(
        **inputs,
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
        suppress_tokens=NEVER,
        eos_token_id=None,
        pad_token_id=0,
    )
    return whole[0, inputs["input_ids"].shape[1] :].tolist()


@torch.no_grad()
def transformers_shortfall(target_dir: Path, prompt: TokenizedPrompt, text: list[int]) -> Tensor:
    """Return how far each token's logit is below the largest one, in standard deviations of all
    logits, float32 [tokens]; 0 for the greedy choice."""
    logits = transformers_model(target_dir)(**transformers_inputs(prompt, text[:-1])).logits
    following = logits[0, len(prompt.tokens) - 1 :].index_fill(1, torch.tensor(NEVER), -torch.inf)
    chosen = following.gather(1, torch.tensor(text)[:, None])[:, 0]
    return (following.amax(dim=1) - chosen) / following[:, : min(NEVER)].std(dim=1)


@cache
def transformers_model(target_dir: Path) -> Any:
    """The checkpoint in float32, read once."""
    from transformers import Gemma4ForConditionalGeneration

    return Gemma4ForConditionalGeneration.from_pretrained(
        target_dir, attn_implementation="eager", dtype=torch.float32
    ).eval()


def transformers_inputs(prompt: TokenizedPrompt, text: list[int]) -> dict[str, Tensor]:
    """Return the inputs of a prompt with its images, and a text after it."""
    ids = torch.tensor([[*prompt.tokens, *text]])
    contents = [placed.image.content for placed in prompt.images]
    patches = [content for content in contents if isinstance(content, ImagePatches)]
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == IMAGE).long(),
        "pixel_values": torch.cat([one.pixels for one in patches]),
        "image_position_ids": torch.cat([one.positions for one in patches]),
    }
