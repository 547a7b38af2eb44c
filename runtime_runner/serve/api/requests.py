"""Bodies of requests: parameters with the names of OpenAI's API, and of vLLM's beyond it.

A parameter that is not named here is refused.
"""

from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    create_model,
    model_validator,
)

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.prompts import Message, MessagePart
from eagle_aot.common.spec import spec_fields
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.sampling.parameters import MAX_LOGPROBS

MAX_MESSAGES, MAX_PROMPTS, MAX_STOPS = 1024, 64, 16
MAX_COMPLETION_LOGPROBS = 5
"""The number of likeliest tokens that OpenAI's API permits for a completion."""
MAX_CHARACTERS = 4_000_000
MAX_URL_CHARACTERS = 48 << 20
"""The largest file that is read, in base64."""
FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "allowed_ids", "stop_ids", "min_tokens", "ignore_eos",
    "seed", "n", "speculate", "chain_len", "logprobs_of",
)  # fmt: skip
"""Fields of `GenerationParams` that a request may have."""
API_NAMES = {"allowed_ids": "allowed_token_ids", "stop_ids": "stop_token_ids"}
"""Fields that the API has other names for."""
API_DEFAULTS = {"temperature": 1.0}
MAX_ITEMS = {"logit_bias": 1024, "stop_ids": 1024, "allowed_ids": 65536}
STRICT = {bool: StrictBool, int: StrictInt, float: StrictFloat}
"""Types that pydantic does not convert values to."""
RequestText = Annotated[str, Field(max_length=MAX_CHARACTERS)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]


class Strict(BaseModel):
    """A model that refuses unknown fields. A field that is null counts as absent."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def without_null(cls, body: Any) -> Any:
        """Drop fields that are null: clients of OpenAI's API send what is None."""
        if not isinstance(body, dict):
            return body
        null = {name for name, value in body.items() if value is None}
        return {name: body[name] for name in body if name not in null & cls.model_fields.keys()}


class TextPart(Strict):
    """A text in a message that has parts."""

    type: Literal["text"]
    text: RequestText

    def part(self) -> MessagePart:
        """Return the part of a prompt."""
        return {"type": "text", "text": self.text}


class DataUrl(Strict):
    """An image in a `data:` URL. With `low` or `high` detail it takes as few or as many tokens as
    the artifact's images may."""

    url: Annotated[str, Field(max_length=MAX_URL_CHARACTERS)]
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Strict):
    """An image in a message that has parts."""

    type: Literal["image_url"]
    image_url: DataUrl

    def part(self) -> MessagePart:
        """Return the part of a prompt."""
        return {
            "type": "image_url",
            "image_url": {"url": self.image_url.url},
            "detail": self.image_url.detail,
        }


class ChatMessage(Strict):
    """A turn of a conversation. `developer` is OpenAI's newer name for the system.

    Fields that can only be null are those that the official client's answers have next to their
    text, for clients that send an answer back.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: RequestText | Annotated[list[TextPart | ImagePart], Field(max_length=MAX_MESSAGES)]
    name: None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None

    def message(self) -> Message:
        """Return the message of a prompt, with parts only where there are images."""
        role = "system" if self.role == "developer" else self.role
        parts = self.content
        if isinstance(parts, str):
            return {"role": role, "content": parts}
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        if len(texts) == len(parts):
            return {"role": role, "content": "".join(texts)}
        return {"role": role, "content": [part.part() for part in parts]}


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: StrictBool = False


def strict(kind: Any) -> Any:
    """Return the type of a parameter in a body, for that of a field of `GenerationParams`."""
    origin, kinds = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return Union[tuple(map(strict, kinds))]  # noqa: UP007
    if origin is tuple:
        return list[strict(kinds[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[kinds[0], strict(kinds[1])]  # type: ignore[valid-type, misc]
    return STRICT.get(kind, kind)


def request_fields() -> dict[str, Any]:
    """Return pydantic's definitions of the parameters in `FIELDS`."""
    definitions: dict[str, Any] = {}
    for field in spec_fields(GenerationParams):
        if field.name not in FIELDS:
            continue
        kind = strict(field.type)
        if field.name in MAX_ITEMS:
            kind = Annotated[kind, Field(max_length=MAX_ITEMS[field.name])]
        if field.optional:
            kind = kind | None
        default = API_DEFAULTS.get(field.name, field.default)
        definitions[API_NAMES.get(field.name, field.name)] = (
            kind, Field(default, description=field.option.help)
        )  # fmt: skip
    return definitions


if TYPE_CHECKING:
    SharedFields = Strict
else:
    SharedFields = create_model("SharedFields", __base__=Strict, **request_fields())


class GenerationRequest(SharedFields):
    """The parameters that both endpoints take: those of `FIELDS`, and these.

    With `trace`, a stream says which of its tokens were drafted.
    """

    model: Annotated[str, Field(max_length=1024)]
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    user: Annotated[str, Field(max_length=1024)] | None = None
    trace: StrictBool = False
    tree: Annotated[str, Field(pattern=r"^\d{1,3},\d{1,3},\d{1,3}$")] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def num_logprobs(self) -> int | None:
        """The field `logprobs` of `GenerationParams`."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The field `prompt_logprobs` of `GenerationParams`."""
        return None

    def parameters(self, max_new_tokens: int) -> list[GenerationParams]:
        """Return the parameters of each answer to a prompt.

        Raises SettingError for a value outside its range, and for options of a stream where no
        stream is requested.
        """
        if self.stream_options is not None and not self.stream:
            raise SettingError("stream_options: needs stream: true")
        values = {name: getattr(self, API_NAMES.get(name, name)) for name in FIELDS}
        values["top_k"] = max(values["top_k"], 0)  # -1 is vLLM's "all"
        return GenerationParams(
            **values,
            echo=getattr(self, "echo", False),  # of completions
            tree=self.tree,
            stop_texts=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            max_new_tokens=max_new_tokens,
            logprobs=self.num_logprobs,
            prompt_logprobs=self.num_prompt_logprobs,
            reuse=True,
        ).answers()


class ChatCompletionRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Raises SettingError for likeliest tokens without the log probabilities of tokens."""
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs is not None:
            raise SettingError(f"top_logprobs {self.top_logprobs}: needs logprobs: true")
        return None

    def max_new_tokens(self, context: int) -> int:
        """Return the limit of an answer: unless it is given, the whole `context`."""
        return self.max_completion_tokens or self.max_tokens or context

    def conversation(self) -> list[Message]:
        """Return all turns."""
        return [message.message() for message in self.messages]


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    prompt: (
        RequestText
        | Annotated[list[RequestText], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[StrictInt], Field(min_length=1)]
        | Annotated[
            list[Annotated[list[StrictInt], Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_PROMPTS),
        ]
    )
    max_tokens: Annotated[StrictInt, Field(ge=0)] = 16
    echo: StrictBool = False
    logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.echo else None

    def max_new_tokens(self) -> int:
        """Return the limit of an answer. Raises SettingError for 0 tokens where no log
        probabilities of the prompt are requested."""
        if not self.max_tokens and self.num_prompt_logprobs is None:
            raise SettingError("max_tokens 0: needs echo: true and logprobs")
        return self.max_tokens

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts. Raises PromptError for text and ids together."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        ids = [part for part in prompt if isinstance(part, int)]
        if len(ids) == len(prompt):
            return [ids]
        prompts = [part for part in prompt if not isinstance(part, int)]
        if len(prompts) != len(prompt):
            raise PromptError("prompt: text, texts, ids or lists of ids, and no two of them")
        return prompts
