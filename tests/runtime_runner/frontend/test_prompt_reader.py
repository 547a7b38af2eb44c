"""Prompts for an artifact that reads text alone."""

from eagle_aot.runtime_runner.frontend.prompt_reader import PromptReader
from eagle_aot.targets.registry import TINY_DIR

BOS = 2  # of the shipped tokenizer


def test_raw_text_has_the_tokenizers_ids() -> None:
    reader = PromptReader(TINY_DIR / "target", None, 64)
    assert reader.read("", raw=True).tokens == (BOS,)
    assert reader.read("Tom", raw=True).tokens == tuple(reader.tokenizer.encode("Tom", raw=True))
