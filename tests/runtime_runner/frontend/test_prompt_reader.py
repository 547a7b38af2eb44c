"""Prompts for an artifact that reads text alone."""

from typing import Any

import pytest

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.runtime_runner.frontend.prompt_reader import PromptReader
from eagle_aot.targets.family import TINY_DIR

BOS = 2  # of the shipped tokenizer
USER = {"role": "user", "content": "a"}


@pytest.fixture(scope="module")
def reader() -> PromptReader:
    return PromptReader(TINY_DIR / "target", None, 64)


def test_raw_text_has_the_tokenizers_ids(reader: PromptReader) -> None:
    assert reader.read("", raw=True).tokens == (BOS,)
    assert reader.read("Tom", raw=True).tokens == tuple(reader.tokenizer.encode("Tom", raw=True))


@pytest.mark.parametrize(("prompt", "options", "message"), [
    ([{"role": "user"}], {}, "messages: Object missing required field `content`"),
    ([{"role": "assistant", "content": "a"}], {}, "the assistant's last one must follow another"),
    ([USER, {"role": "system", "content": "a"}], {}, "must be the user's or the assistant's"),
    ([1, 2], {"system": "Count."}, "token ids take no system text"),
    ("Tom", {"raw": True, "system": "Count."}, "a raw prompt is text alone"),
    ([USER], {"raw": True}, "a raw prompt is text alone"),
    ("a\ud800", {}, "the prompt is not valid Unicode text$"),
    ("\udcc3\udca9", {}, "Unicode text: it is not in the locale's encoding, utf-8"),
])  # fmt: skip
def test_a_prompt_that_cannot_be_read_is_refused(
    reader: PromptReader, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((PromptError, SettingError), match=message):
        reader.read(prompt, **options)
