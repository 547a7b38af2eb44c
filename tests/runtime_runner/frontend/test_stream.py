"""Text as it grows, against the text as a whole: tokens are bytes, so characters come in parts."""

import itertools
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from eagle_aot.common.errors import SettingError
from eagle_aot.common.tokenizer import Tokenizer, read_tokenizer
from eagle_aot.runtime_runner.frontend.stream import (
    Decode,
    Detokenizer,
    TextStream,
    decode_answer,
)
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.targets.family import TINY_DIR

ALPHABET = "aab é日🙂\n"
TEXTS = st.text(ALPHABET, max_size=40)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3)


def decode(ids: list[int]) -> str:
    """Bytes; 256 is a special token."""
    return bytes(i for i in ids if i < 256).decode(errors="replace")


def ended(text: str, stops: list[str]) -> tuple[str, int]:
    """The text before the stop that is complete first, and how many of its bytes had to be read."""
    for n in range(len(text) + 1):
        starts = [text[:n].find(stop) for stop in stops if stop in text[:n]]
        if starts:
            return text[: min(starts)], len(text[:n].encode())
    return text, len(text.encode())


@settings(max_examples=500, deadline=None)
@given(
    text=TEXTS,
    stops=STOPS,
    within=st.none() | st.tuples(st.integers(0, 39), st.integers(1, 4)),
    runs=st.lists(st.integers(1, 5), min_size=1, max_size=9),
)
@example(text="a b aab", stops=["b a", "aab"], within=None, runs=[1])
@example(text="aaab", stops=["aab"], within=None, runs=[4])
def test_text_ends_before_the_first_stop_text(
    text: str, stops: list[str], within: tuple[int, int] | None, runs: list[int]
) -> None:
    """Wherever tokens and runs begin; no text is passed on that a stop text removes later."""
    if within is not None and (part := text[within[0] : sum(within)]):
        stops = [*stops, part]
    expected, needed = ended(text, stops)
    parts: list[str] = []
    stream = TextStream(decode, stops, parts.append)
    taken = 0
    tokens, run = list(text.encode()), 0
    while tokens and not stream.stopped:
        size = runs[run % len(runs)]
        run += 1
        for token in tokens[:size]:
            taken += 1
            if stream.add(token):
                break
        tokens = tokens[size:]
        stream.flush()
        assert expected.startswith("".join(parts))
    assert taken == needed
    assert stream.finish(text) == "".join(parts) == expected
    assert all(parts)


@given(text=TEXTS, before=TEXTS, runs=st.lists(st.integers(1, 5), min_size=1, max_size=9))
def test_offsets_say_where_a_tokens_text_begins(text: str, before: str, runs: list[int]) -> None:
    stream, content = TextStream(decode, [], None, before), text.encode()
    placed: list[TokenLogprobs] = []
    for run in itertools.cycle(runs):
        part = content[len(placed) : len(placed) + run]
        for token in part:
            stream.add(token)
        placed += stream.with_offsets([TokenLogprobs(token, -1.0) for token in part])
        if len(placed) == len(content):
            break
    whole = [len(before + content[:i].decode(errors="ignore")) for i in range(len(content))]
    assert [token.offset for token in placed] == whole
    assert [token.id for token in placed] == [*content]
    without = [TokenLogprobs(1, -1.0)]
    assert TextStream().with_offsets(without) == without


def test_the_beginning_of_a_stop_text_is_withheld() -> None:
    parts: list[str] = []
    stream = TextStream(decode, ["\nUser:"], parts.append)
    for token in b"Hi.\nUs":
        assert not stream.add(token)
        stream.flush()
    assert "".join(parts) == "Hi."
    assert not stream.add(ord("a"))
    stream.flush()
    assert "".join(parts) == "Hi.\nUsa"


def test_half_a_character_is_withheld_until_the_end() -> None:
    parts: list[str] = []
    stream = TextStream(decode, [], parts.append)
    tokens = [b"a"[0], *"é".encode(), *"日".encode()[:2]]
    for token in tokens:
        stream.add(token)
        stream.flush()
    assert parts == ["a", "é"]
    assert stream.finish(decode(tokens)) == "aé\ufffd"
    assert parts == ["a", "é", "\ufffd"]


def test_special_tokens_have_no_text() -> None:
    stream = TextStream(decode, ["ab"], None)
    assert [stream.add(token) for token in (97, 256, 256, 98)] == [False, False, False, True]
    assert stream.finish("ab") == ""


def test_an_empty_stop_text_is_refused() -> None:
    with pytest.raises(SettingError, match="stop text '': every text contains it"):
        TextStream(decode, ["a", ""], None)


def test_stop_checker_without_a_text() -> None:
    stream = TextStream()
    assert not stream.add(97) and not stream.stopped
    assert (stream.finish("text"), stream.finish(None)) == ("text", None)


SENTENCE = "Ada has 27 marbles.\n\n  Tom's naïve 日本 🙂🙂 friend: 3 * 12 = 36\t#### 36"


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return read_tokenizer(TINY_DIR / "target")


def one_by_one(decode: Decode, ids: list[int]) -> str:
    detokenizer = Detokenizer(decode)
    return "".join(detokenizer.add(token) for token in ids)


def test_tokens_one_by_one_give_the_text(shipped: Tokenizer) -> None:
    ids = shipped.encode(SENTENCE, raw=True)
    assert one_by_one(shipped.decode, ids) == shipped.decode(ids) == SENTENCE


def test_random_tokens_give_the_text_of_all_at_once(shipped: Tokenizer) -> None:
    """For tokens with whole characters."""
    rng = random.Random(0)
    words = [
        i for i in range(shipped.backend.get_vocab_size()) if "\ufffd" not in shipped.decode([i])
    ]
    for _ in range(30):
        ids = [rng.choice(words) for _ in range(50)]
        assert one_by_one(shipped.decode, ids) == shipped.decode(ids)


def test_a_space_that_only_the_first_word_loses_stays() -> None:
    """Llama 2's tokenizer drops it."""
    words = {"\u2581Ada": 0, "\u2581has": 1, "27": 2, "</s>": 3}
    library = Backend(models.WordLevel(words, unk_token="</s>"))
    library.add_special_tokens(["</s>"])
    library.decoder = decoders.Metaspace()
    assert library.decode([1]) == "has"
    assert one_by_one(library.decode, [0, 1, 3, 1, 2, 3, 3, 1]) == "Ada has has27 has"


WORDS = [
    "</s>",
    "\u2581Hello",
    "\u2581world",
    "\u2581",
    "x",
    "<0xE6>",
    "<0x97>",
    "<0xA5>",
    "\u2581\u2581",
]
SPECIAL, HELLO, WORLD, BLANK, X, E6, B97, A5, BLANKS = range(len(WORDS))


@pytest.fixture(scope="module")
def llama2() -> Decode:
    """Decode as Llama 2's tokenizer does: a text loses its first space."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    library = Backend(models.BPE(vocabulary, [], byte_fallback=True))
    library.add_special_tokens(["</s>"])
    library.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    return lambda ids: library.decode(ids)


@pytest.mark.parametrize(("prompt", "answer", "text"), [
    ([HELLO], [WORLD, X], " worldx"),
    ([HELLO, *[SPECIAL] * 40], [WORLD], " world"),  # what has no text is looked past
    ([SPECIAL], [WORLD], "world"),  # an empty prompt: the first space is dropped here
    ([], [WORLD, WORLD], "world world"),
    ([BLANK], [WORLD], " world"),  # the prompt's own blank is the dropped one
    ([BLANKS], [BLANK, X], " x"),
    ([*[HELLO] * 30, E6, B97, A5], [WORLD], " world"),  # three bytes are one character
    ([HELLO, *[E6, B97, A5] * 5], [WORLD], " world"),  # the last tokens begin within a character
    ([HELLO], [E6, B97, A5, SPECIAL], "日"),
    ([HELLO, E6, B97], [A5, X], "\ufffdx"),  # half a character belongs to no text
])  # fmt: skip
def test_an_answer_is_what_it_adds_to_the_text_of_its_prompt(
    llama2: Decode, prompt: list[int], answer: list[int], text: str
) -> None:
    whole, parts = llama2([*prompt, *answer]), list[str]()
    if not llama2(prompt).endswith("\ufffd"):
        added = whole[len(llama2(prompt)) :]
        assert added == text
    stream = TextStream(llama2, [], parts.append, prompt=prompt)
    for token in answer:
        stream.add(token)
        stream.flush()
    assert stream.finish(decode_answer(llama2, prompt, answer)) == "".join(parts) == text
    streamed = Detokenizer(llama2, prompt)
    assert "".join(streamed.add(token) for token in answer) == text


def test_stop_texts_echoes_and_offsets_have_the_first_space(llama2: Decode) -> None:
    stream = TextStream(llama2, [" world"], prompt=[HELLO])
    assert stream.add(WORLD) and stream.finish("") == ""
    echo = TextStream(llama2, ["ox"], None, "Hello", [HELLO])
    assert [echo.add(token) for token in (WORLD, X)] == [False, False]
    placed = echo.with_offsets([TokenLogprobs(WORLD, -1.0), TokenLogprobs(X, -1.0)])
    assert [token.offset for token in placed] == [5, 11]
    assert echo.finish(" worldx") == "Hello worldx"


@given(prompt=TEXTS, answer=TEXTS)
def test_a_prompt_changes_no_text_of_a_tokenizer_of_bytes(prompt: str, answer: str) -> None:
    before, after = list(prompt.encode()), list(answer.encode())
    assert decode_answer(decode, before, after) == answer
    assert decode_answer(decode, before[:-1], after) == answer
    streamed = Detokenizer(decode, before[:-1])
    assert "".join(streamed.add(token) for token in after) == answer
