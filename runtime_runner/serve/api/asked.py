"""What a request may ask for: parameters with the names of OpenAI's API, and of vLLM's beyond it.

Whatever is not named here is refused.
"""

from abc import abstractmethod
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.prompts import Message, Part
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.sampling.parameters import MAX_LOGPROBS, LogprobsOf

MOST_MESSAGES, MOST_PROMPTS, MOST_STOPS = 1024, 64, 16
MOST_OF_A_COMPLETION = 5
"""Likeliest tokens that OpenAI's API tells of there."""
MOST_CHARACTERS = 4_000_000
MOST_URL = 48 << 20
"""Characters: of the largest file that is read, in base64."""
Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
AS_THEY_ARE = (
    "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "min_tokens", "ignore_eos", "seed", "n", "speculate", "chain_len", "tree",
    "logprobs_of",
)  # fmt: skip
"""Parameters that have the same name and meaning here."""
Stop = Annotated[str, Field(min_length=1, max_length=1024)]


class Strict(BaseModel):
    """Of which nothing is ignored; a field that is null is as one that is not there."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def without_null(cls, asked: Any) -> Any:
        """As in OpenAI's API, whose clients send what is None."""
        if not isinstance(asked, dict):
            return asked
        null = {name for name, value in asked.items() if value is None}
        return {name: asked[name] for name in asked if name not in null & cls.model_fields.keys()}


class TextPart(Strict):
    """Of a message that comes in parts."""

    type: Literal["text"]
    text: Text


class ImageUrl(Strict):
    """A picture in a `data:` URL; with `low` or `high` detail it takes as few or as many tokens as
    the artifact's pictures may."""

    url: Annotated[str, Field(max_length=MOST_URL)]
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Strict):
    """A picture of a message that comes in parts."""

    type: Literal["image_url"]
    image_url: ImageUrl

    def part(self) -> Part:
        """As prompts have it."""
        return {
            "type": "image_url",
            "image_url": {"url": self.image_url.url},
            "detail": self.image_url.detail,
        }


class Turn(Strict):
    """Of a conversation; `developer` is OpenAI's newer name for the system. What can only be null
    is what the official client's answers hold beside their text, for who sends them back."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart | ImagePart], Field(max_length=MOST_MESSAGES)]
    name: None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None

    def message(self) -> Message:
        """As prompts have it: parts where there are pictures."""
        role = "system" if self.role == "developer" else self.role
        parts = self.content
        if isinstance(parts, str):
            return {"role": role, "content": parts}
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        if len(texts) == len(parts):
            return {"role": role, "content": "".join(texts)}
        return {"role": role, "content": [_part(part) for part in parts]}


def _part(part: TextPart | ImagePart) -> Part:
    if isinstance(part, ImagePart):
        return part.part()
    return {"type": "text", "text": part.text}


class StreamOptions(Strict):
    """Of a stream."""

    include_usage: StrictBool = False


class Asked(Strict):
    """By either endpoint. `chain_len`, `tree` and `speculate` are ours and change no token; with
    `trace`, a stream tells which of its tokens were drafted; `logprobs_of` says whether log
    probabilities are the model's or those of sampling."""

    model: Annotated[str, Field(max_length=1024)]
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[StrictInt], Field(max_length=1024)] = []
    temperature: StrictFloat = 1.0
    top_p: StrictFloat = 1.0
    top_k: StrictInt = 0
    min_p: StrictFloat = 0.0
    presence_penalty: StrictFloat = 0.0
    frequency_penalty: StrictFloat = 0.0
    repetition_penalty: StrictFloat = 1.0
    logit_bias: Annotated[dict[int, StrictFloat], Field(max_length=1024)] = {}
    allowed_token_ids: Annotated[list[StrictInt], Field(max_length=65536)] | None = None
    min_tokens: StrictInt = 0
    ignore_eos: StrictBool = False
    seed: StrictInt | None = None
    n: StrictInt = 1
    user: Annotated[str, Field(max_length=1024)] | None = None
    speculate: StrictBool = True
    chain_len: StrictInt | Literal["auto"] | None = None
    trace: StrictBool = False
    logprobs_of: LogprobsOf = "model"
    tree: Annotated[str, Field(pattern=r"^\d{1,3},\d{1,3},\d{1,3}$")] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with what it cost."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    @abstractmethod
    def most_logprobs(self) -> int | None:
        """Of how many of the likeliest tokens, None where no log probabilities are told."""

    @property
    def most_prompt_logprobs(self) -> int | None:
        """The same of the prompt's tokens."""
        return None

    def parameters(self, max_new_tokens: int, *, echo: bool = False) -> list[GenerationParams]:
        """Of each answer to a prompt. Raises SettingError for a value outside its range, and for
        options of a stream where none is asked for."""
        if self.stream_options is not None and not self.stream:
            raise SettingError("stream_options: needs stream: true")
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return GenerationParams(
            **{name: getattr(self, name) for name in AS_THEY_ARE},
            top_k=max(self.top_k, 0),  # -1 is vLLM's "all"
            allowed_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            stop_texts=tuple(stops),
            stop_ids=tuple(self.stop_token_ids),
            max_new_tokens=max_new_tokens,
            logprobs=self.most_logprobs,
            prompt_logprobs=self.most_prompt_logprobs,
            echo=echo,
            reuse=True,
        ).answers()


class ChatAsked(Asked):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Turn], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def most_logprobs(self) -> int | None:
        """Raises SettingError for the likeliest tokens' without the tokens' own."""
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs is not None:
            raise SettingError(f"top_logprobs {self.top_logprobs}: needs logprobs: true")
        return None

    def most_tokens(self, context: int) -> int:
        """Of an answer: as many as there is room for, unless it says."""
        return self.max_completion_tokens or self.max_tokens or context

    def conversation(self) -> list[Message]:
        """All turns."""
        return [turn.message() for turn in self.messages]


class CompletionAsked(Asked):
    """POST /v1/completions."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[StrictInt], Field(min_length=1)]
        | Annotated[
            list[Annotated[list[StrictInt], Field(min_length=1)]],
            Field(min_length=1, max_length=MOST_PROMPTS),
        ]
    )
    max_tokens: Annotated[StrictInt, Field(ge=0)] = 16
    echo: StrictBool = False
    logprobs: Annotated[StrictInt, Field(ge=0, le=MOST_OF_A_COMPLETION)] | None = None

    @property
    def most_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def most_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.echo else None

    def most_tokens(self) -> int:
        """Of an answer. Raises SettingError for none where nothing is told of the prompt either."""
        if not self.max_tokens and self.most_prompt_logprobs is None:
            raise SettingError("max_tokens 0: needs echo: true and logprobs")
        return self.max_tokens

    def prompts(self) -> list[str | list[int]]:
        """One or several. Raises PromptError for text and ids together."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if all(isinstance(part, int) for part in prompt):
            return [[part for part in prompt if isinstance(part, int)]]
        found = [part for part in prompt if not isinstance(part, int)]
        if len(found) != len(prompt):
            raise PromptError("prompt: text, texts, ids or lists of ids, and no two of them")
        return found
