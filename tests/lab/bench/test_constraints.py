"""The made-up words that stand for the tokens of an artifact of random weights."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from eagle_aot.lab.bench.constraints import write_made_up_words
from eagle_aot.runtime_runner.sampling.constraint import GrammarCompiler


def test_made_up_words_are_held_to_a_form(tmp_path: Path) -> None:
    path, count = tmp_path / "tokenizer.json", 4000
    write_made_up_words(path, count)
    tokenizer = Tokenizer.from_file(str(path))
    assert tokenizer.get_vocab_size() == count
    bitmask = torch.zeros(count // 8, dtype=torch.uint8)
    GrammarCompiler(path, count, (0,)).compile("regex", "[ b-z]+").look_ahead(bitmask)
    allowed = bitmask[:, None] >> torch.arange(8) & 1
    texts = [tokenizer.decode([token]) for token in allowed.flatten().nonzero().flatten().tolist()]
    assert {"b", " "} < set(texts) and len(texts) > 30
    assert all(text and set(text) <= set(" bcdefghijklmnopqrstuvwxyz") for text in texts)
