"""Prompts for tests of losslessness."""

import itertools
import random

from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.runtime_runner import Runner

CHAIN_LENS = range(1, 8)
NUM_PROMPTS = 200
BOUNDARIES = 13
"""So many of the first prompts have lengths around one."""


def mixed_prompts(runner: Runner, count: int = NUM_PROMPTS) -> list[list[int]]:
    """Prompts shorter than the prefill minimum, around every boundary, several chunks long."""
    rng = random.Random(5)
    constants = runner.constants
    window, least = constants.sliding_window, constants.min_prefill_chunk
    longest = min(3 * window, constants.max_seq_len - 20)
    lengths = [1, 2, least - 1, least, least + 1, window - 1, window, window + 1]
    lengths += [window + least - 1, window + least, 2 * window, 2 * window + 3, longest]
    assert len(lengths) == BOUNDARIES
    lengths += [rng.randint(1, longest) for _ in range(count // 2 - BOUNDARIES)]
    noise = [[rng.randrange(constants.vocab_size) for _ in range(n)] for n in lengths]
    problems = itertools.islice(stories(11, "test"), count - len(noise))
    return noise + [runner.tokenizer.encode(story.question)[:longest] for story in problems]
