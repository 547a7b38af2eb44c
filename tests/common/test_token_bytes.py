"""The bytes of tokens in vocabularies of bytes and of SentencePiece, and printable text."""

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers as norm
from tokenizers import pre_tokenizers as pre
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from eagle_aot.common.text import printable
from eagle_aot.common.token_bytes import (
    SHRINKING,
    TokenBytes,
    byte_of_character,
    most_bytes_per_token,
)
from eagle_aot.common.tokenizer import Tokenizer, read_tokenizer
from eagle_aot.targets.family import TINY_DIR

TEXT = "Ada has 27 crêpes, ≥ 3 😀.\n\tAnd 中文 too."


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return read_tokenizer(TINY_DIR / "target")


def sentence_piece() -> TokenBytes:
    """Returns the bytes of a vocabulary with Gemma's spaces and bytes."""
    pieces = ["<unk>", "<s>", "\u2581Ada", "a\u2581\u2581b", "<0xF0>", "<0x9f>", "é"]
    made = Backend(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    made.add_special_tokens(["<s>"])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return TokenBytes(made)


def test_the_bytes_of_a_texts_tokens_are_the_text(shipped: Tokenizer) -> None:
    _, *ids = shipped.encode(TEXT, raw=True)  # after a beginning-of-sequence token
    assert len(ids) > len(TEXT.split())
    assert b"".join(map(shipped.bytes_of, ids)) == TEXT.encode()


def test_a_special_token_has_its_name(shipped: Tokenizer) -> None:
    theirs = AutoTokenizer.from_pretrained(TINY_DIR / "target")
    ids = theirs.all_special_ids
    assert [shipped.bytes_of(i) for i in ids] == [t.encode() for t in theirs.all_special_tokens]
    assert all(map(shipped.bytes_of.is_special, ids))
    special = map(shipped.bytes_of.is_special, shipped.encode(TEXT, raw=True))
    assert [*special][:2] == [True, False]


def test_an_id_without_a_token_has_no_bytes(shipped: Tokenizer) -> None:
    assert shipped.bytes_of(10**6) == b"" and not shipped.bytes_of.is_special(10**6)


def test_spaces_and_bytes_of_sentence_piece() -> None:
    bytes_of = sentence_piece()
    pieces = [bytes_of(token) for token in range(1, 7)]
    assert pieces == [b"<s>", b" Ada", b"a  b", b"\xf0", b"<0x9f>", "é".encode()]
    assert bytes_of.is_special(1) and not bytes_of.is_special(2)


def test_characters_of_bytes_are_those_of_transformers() -> None:
    assert byte_of_character() == {c: byte for byte, c in bytes_to_unicode().items()}


@given(st.text())
def test_control_characters_alone_are_replaced(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and len(shown) == len(text)
    assert all(new in (old, "\ufffd") for new, old in zip(shown, text, strict=True))


@pytest.mark.parametrize("text", ["", "plain text: 1 %", "d\u00e9j\u00e0 vu \u4e2d \U0001f600"])
def test_printable_text_does_not_change(text: str) -> None:
    assert printable(text) == text


def test_escape_sequences_are_replaced() -> None:
    assert printable("\x1b]0;owned\x07\x1b[2J\u202e") == "\ufffd]0;owned\ufffd\ufffd[2J\ufffd"


BYTE_LEVEL = dict.fromkeys([*byte_of_character(), "\u0120\u0120\u0120\u0120"])
WITH_BYTES = dict.fromkeys([*(f"<0x{byte:02X}>" for byte in range(256)), "\u2581\u2581", "a", "K"])
BYTES = pre.ByteLevel(add_prefix_space=False)


def backend_of(
    pieces: dict[str, None], normalizer: Any = None, before: Any = None, **options: Any
) -> Backend:
    made = Backend(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], **options))
    if normalizer is not None:
        made.normalizer = normalizer
    if before is not None:
        made.pre_tokenizer = before
    return made


def stripping() -> Backend:
    made = backend_of(BYTE_LEVEL, before=BYTES)
    made.add_tokens([AddedToken("<mask>", lstrip=True)])
    return made


def sentence_pieces(normalizer: Any = None) -> Backend:
    return backend_of(WITH_BYTES, normalizer, byte_fallback=True, fuse_unk=True)


WORDS = pre.Sequence([pre.Split(" ", "isolated"), BYTES])
SPACES = norm.Replace(" ", "\u2581")
LENGTHS: list[tuple[Callable[[], Backend], int | None]] = [
    (lambda: backend_of(BYTE_LEVEL, before=BYTES), 8),
    (lambda: backend_of(BYTE_LEVEL, norm.NFC(), pre.Sequence([pre.Digits(), BYTES])), 24),
    (lambda: backend_of(BYTE_LEVEL, norm.NFKC(), WORDS), 32),
    (lambda: sentence_pieces(SPACES), 6),
    (lambda: sentence_pieces(norm.Sequence([norm.Prepend("\u2581"), SPACES])), 6),
    # What may drop or merge any number of characters:
    (lambda: backend_of(BYTE_LEVEL, before=pre.Sequence([pre.Split(" ", "removed"), BYTES])), None),
    (lambda: backend_of(BYTE_LEVEL, before=pre.Sequence([pre.Whitespace(), BYTES])), None),
    (lambda: backend_of(BYTE_LEVEL, norm.Strip(), BYTES), None),
    (lambda: backend_of(BYTE_LEVEL, norm.Replace(" ", ""), BYTES), None),
    (lambda: backend_of(BYTE_LEVEL), None),
    (lambda: backend_of({"a": None}, before=BYTES), None),
    (lambda: backend_of(WITH_BYTES, unk_token="a", fuse_unk=True), None),
    (lambda: backend_of({"a": None}, unk_token="a", byte_fallback=True, fuse_unk=True), None),
    (stripping, None),
]  # fmt: skip


@pytest.mark.parametrize(("make", "most"), LENGTHS)
def test_no_token_stands_for_more_bytes_than_is_said(
    make: Callable[[], Backend], most: int | None
) -> None:
    """Where a number is said, it holds for texts that become as short as they can."""
    made = make()
    assert most_bytes_per_token(made) == most
    greek = "\u03b1\u0313\u0300\u0345"
    for text in (
        TEXT,
        " " * 400,
        "\u212a" * 99,
        greek * 99,
        "\u1100\u1161\u11a8" * 99,
        "\U0001d400" * 99,
    ):
        if most is not None:
            assert len(text.encode()) <= most * len(made.encode(text).ids)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_no_character_becomes_shorter_than_is_said(form: Any) -> None:
    for code in (*range(0xD800), *range(0xE000, 0x30000)):
        length = len(chr(code).encode())
        assert length <= SHRINKING[form] * len(unicodedata.normalize(form, chr(code)).encode())
