"""Prompts and lengths that the self-tests of the export and of artifacts share."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from eagle_aot.common.prompts import Prompt, read_prompts

MAX_NEW_TOKENS = 24
CHAIN_LEN = 4
"""Drafts from every position, independent of the artifact's default."""

PROMPTS = (
    "Ada has 27 marbles. Marco has 6 times as many. How many marbles do they have together?",
    "Tom buys 4 boxes of pencils. Each box holds 12 pencils. He gives 9 pencils to Maya. How many "
    "pencils does Tom have left?",
    "Lena earns 14 dollars a day and works for 6 days. She spends 25 dollars on books. How many "
    "dollars does she have?",
    "A train leaves at 9 o'clock and travels 240 kilometres at 80 kilometres per hour. When does "
    "it arrive?",
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Write a short, polite email that asks a colleague to move a meeting to Thursday.",
    "What are the main differences between a virus and a bacterium?",
    "Translate into French: The library opens at nine and closes at six.",
    "Name three rivers in Europe and the seas that they flow into.",
)
"""Chat for models that chat, and four problems of the kind that the shipped model knows."""


def self_test_prompts(prompts_jsonl: Path | None) -> list[Prompt]:
    """Return the prompts of a file, or the built-in ones. Raises PromptError for a bad file."""
    return list(PROMPTS) if prompts_jsonl is None else read_prompts(None, None, prompts_jsonl)


def by_position(shares: Sequence[object]) -> str:
    """Return acceptance in CHAIN_LEN columns; a dash for drafts that were not reached."""
    reached = [number(share, 2) for share in shares[:CHAIN_LEN]]
    return " ".join(f"{cell:>4}" for cell in [*reached, *"-" * (CHAIN_LEN - len(reached))])


def number(value: object, digits: int) -> str:
    """Format a number with `digits` decimals, or `-` if it is missing or too wide."""
    fits = isinstance(value, int | float) and -1e9 < value < 1e9
    return f"{value:.{digits}f}" if fits else "-"


def identity(prompts: Sequence[Prompt]) -> str:
    """Return the SHA-256 of the prompts, which tells whether two results are comparable."""
    return hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()
