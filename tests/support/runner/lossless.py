"""Prompts and a chooser of shapes for tests of losslessness."""

import itertools
import random
from collections.abc import Sequence

from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.adaptive.costs import CostTable
from eagle_aot.runtime_runner.decode.shape import Shape

CHAIN_LENS = range(1, 8)
NUM_PROMPTS = 200
BOUNDARIES = 13
"""So many of the first prompts have lengths around one."""


def mixed_prompts(runner: Runner, count: int = NUM_PROMPTS) -> list[list[int]]:
    """Return prompts shorter than a prefill, around every boundary, and of several chunks."""
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


class ShuffledChooser(Chooser):
    """Deals all shapes in random order, again and again, and lets the drafter catch up at random
    times."""

    def __init__(self, costs: CostTable) -> None:
        super().__init__(costs)
        self.rng, self.dealt = random.Random(4), list[Shape]()

    def choose_run(
        self, shapes: Sequence[Shape], position: int, remaining_tokens: int, pending: float = 0.0
    ) -> tuple[Shape, int]:
        self.dealt = self.dealt or self.rng.sample(shapes, len(shapes))
        return self.dealt.pop(), self.rng.randint(1, 4)

    def can_afford(self, loss: float) -> bool:
        return self.rng.random() < 0.3
