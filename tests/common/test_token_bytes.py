"""What tokens stand for, of tokenizers of bytes and of SentencePiece."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Made
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from eagle_aot.common.token_bytes import TokenBytes
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.targets import TARGETS

TEXT = "Ada has 27 crêpes, ≥ 3 😀.\n\tAnd 中文 too."


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    target_dir = TARGETS["gemma4-tiny"].target_dir
    assert target_dir is not None
    return Tokenizer(Path(target_dir))


def sentence_piece() -> TokenBytes:
    """As Gemma's own writes spaces and bytes."""
    pieces = ["<unk>", "<s>", "\u2581Ada", "a\u2581\u2581b", "<0xF0>", "<0x9f>", "é"]
    made = Made(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return TokenBytes(PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>"))


def test_the_bytes_of_a_texts_tokens_are_the_text(shipped: Tokenizer) -> None:
    _, *ids = shipped.encode(TEXT, raw=True)  # behind a beginning of its own
    assert len(ids) > len(TEXT.split())
    assert b"".join(map(shipped.bytes_of, ids)) == TEXT.encode()


def test_a_special_token_has_its_name(shipped: Tokenizer) -> None:
    ids = shipped.hf.all_special_ids
    assert [shipped.bytes_of(i) for i in ids] == [t.encode() for t in shipped.hf.all_special_tokens]
    assert all(map(shipped.bytes_of.is_special, ids))
    special = map(shipped.bytes_of.is_special, shipped.encode(TEXT, raw=True))
    assert [*special][:2] == [True, False]


def test_an_id_without_a_token_is_nothing(shipped: Tokenizer) -> None:
    assert shipped.bytes_of(10**6) == b"" and not shipped.bytes_of.is_special(10**6)


def test_blanks_and_bytes_of_sentence_piece() -> None:
    bytes_of = sentence_piece()
    found = [bytes_of(token) for token in range(1, 7)]
    assert found == [b"<s>", b" Ada", b"a  b", b"\xf0", b"<0x9f>", "é".encode()]
    assert bytes_of.is_special(1) and not bytes_of.is_special(2)
