"""Tokens one by one against all at once: of a real tokenizer, and of one that eats a blank."""

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from eagle_aot.common.tokenizer import Tokenizer, read_tokenizer
from eagle_aot.runtime_runner.frontend.stream import Decode, Detokenizer
from eagle_aot.targets import TARGETS

TEXT = "Ada has 27 marbles.\n\n  Tom's naïve 日本 🙂🙂 friend: 3 * 12 = 36\t#### 36"


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    directory = TARGETS["gemma4-tiny"].target_dir
    assert directory is not None
    return read_tokenizer(Path(directory))


def pieces(decode: Decode, ids: list[int]) -> str:
    detokenizer = Detokenizer(decode)
    return "".join(detokenizer.add(token) for token in ids)


def test_a_text_comes_back(shipped: Tokenizer) -> None:
    ids = shipped.encode(TEXT, raw=True)
    assert pieces(shipped.decode, ids) == shipped.decode(ids) == TEXT


def test_random_tokens_give_what_decoding_them_at_once_gives(shipped: Tokenizer) -> None:
    """As far as their characters are whole."""
    rng = random.Random(0)
    words = [
        i for i in range(shipped.backend.get_vocab_size()) if "\ufffd" not in shipped.decode([i])
    ]
    for _ in range(30):
        ids = [rng.choice(words) for _ in range(50)]
        assert pieces(shipped.decode, ids) == shipped.decode(ids)


def test_a_blank_that_only_the_first_word_loses_is_kept() -> None:
    """As Llama 2's tokenizer has it."""
    words = {"\u2581Ada": 0, "\u2581has": 1, "27": 2, "</s>": 3}
    library = Library(models.WordLevel(words, unk_token="</s>"))
    library.add_special_tokens(["</s>"])
    library.decoder = decoders.Metaspace()
    assert library.decode([1]) == "has"
    assert pieces(library.decode, [0, 1, 3, 1, 2, 3, 3, 1]) == "Ada has has27 has"
