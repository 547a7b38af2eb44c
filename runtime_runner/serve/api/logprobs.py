"""Log probabilities as the OpenAI API words them."""

from collections.abc import Sequence
from typing import Any

from eagle_aot.common.token_bytes import TokenBytes
from eagle_aot.runtime_runner.frontend.result import Result
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs


class Shown:
    """Which of an answer's tokens a reader has the text of: those alone are told of, so none of
    what a stop text begins with. With `every` all tokens are in the end: who reads an echo counts
    those of the prompt from the first on, and those of the answer from the last."""

    def __init__(self, *, every: bool = False) -> None:
        self._every = every
        self._waiting: list[TokenLogprobs] = []
        self._characters = 0

    def more(self, logprobs: Sequence[TokenLogprobs], text: str) -> list[TokenLogprobs]:
        """Tokens that begin in front of what is shown now, of these and those before."""
        self._waiting += logprobs
        self._characters += len(text)
        shown = [one for one in self._waiting if (one.offset or 0) < self._characters]
        self._waiting = self._waiting[len(shown) :]
        return shown

    def rest(self, result: Result) -> list[TokenLogprobs]:
        """At the end: tokens without a text, unless they are what ended it."""
        return [] if result.finish_reason == "stop" and not self._every else self._waiting


def of_chat(logprobs: Sequence[TokenLogprobs], bytes_of: TokenBytes) -> dict[str, Any]:
    """Of /v1/chat/completions. Tokens that no text has have a name and no bytes."""

    def worded(token: int, logprob: float | None) -> dict[str, Any]:
        content = bytes_of(token)
        known = None if bytes_of.is_special(token) else list(content)
        return {"token": spelled(content), "logprob": logprob, "bytes": known}

    content = [
        worded(one.id, one.logprob) | {"top_logprobs": [worded(*pair) for pair in one.top]}
        for one in logprobs
    ]
    return {"content": content, "refusal": None}


def of_completion(logprobs: Sequence[TokenLogprobs], bytes_of: TokenBytes) -> dict[str, Any]:
    """Of /v1/completions: the likeliest by their texts, and the token itself among them; null of a
    prompt's first token."""

    def top(one: TokenLogprobs) -> dict[str, float] | None:
        if one.logprob is None:
            return None
        found: dict[str, float] = {}
        for token, logprob in (*one.top, (one.id, one.logprob)):
            found.setdefault(spelled(bytes_of(token)), logprob)
        return found

    return {
        "tokens": [spelled(bytes_of(one.id)) for one in logprobs],
        "token_logprobs": [one.logprob for one in logprobs],
        "top_logprobs": [top(one) for one in logprobs],
        "text_offset": [one.offset for one in logprobs],
    }


def spelled(content: bytes) -> str:
    """Text, or the bytes where they are no whole characters."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
