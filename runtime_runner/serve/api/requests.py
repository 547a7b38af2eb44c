"""Bodies of requests: parameters with the names of OpenAI's API, and of vLLM's beyond it.

`fields` says what other names mean; no value that is null arrives here. msgspec converts a body to
these structs and stops at its first error.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.prompts import Message, Prompt, check_messages
from eagle_aot.common.spec import spec_fields
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.decode.shape import AUTO
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.images.prompt_image import TokenizedPrompt
from eagle_aot.runtime_runner.sampling.parameters import MAX_LOGPROBS
from eagle_aot.runtime_runner.serve.api.chat_answers import ChatTurn
from eagle_aot.runtime_runner.serve.api.messages import (
    MAX_MESSAGES,
    Body,
    ChatMessage,
    RequestText,
    ShortText,
)
from eagle_aot.runtime_runner.serve.api.tools import (
    ToolChoice,
    Tools,
    call_policy,
    declared,
)
from eagle_aot.runtime_runner.serve.spec import API_DEFAULTS
from eagle_aot.runtime_runner.serve.tool_calls.chat_format import ChatFormat

MAX_PARTS, MAX_PROMPTS, MAX_STOPS = 4096, 64, 16
"""Limits of a request; that of parts is for all of its messages together."""
MAX_COMPLETION_LOGPROBS = 5
"""The number of likeliest tokens that OpenAI's API permits for a completion."""
MAX_COMPLETION_TOKENS = 16  # unless a request says otherwise, as in OpenAI's API
FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "allowed_ids", "stop_ids", "min_tokens", "ignore_eos",
    "seed", "n", "speculate", "chain_len", "logprobs_of",
)  # fmt: skip
"""Fields of `GenerationParams` that a request may have."""
API_NAMES = {"allowed_ids": "allowed_token_ids", "stop_ids": "stop_token_ids"}
"""Fields that the API has other names for."""
MAX_ITEMS = {"logit_bias": 1024, "stop_ids": 1024, "allowed_ids": 65536}
MAX_GBNF = 1 << 16
"""Characters of a grammar that is translated, in a second."""
LARK = re.compile(r"^[ \t]*(%llguidance\b|start[ \t]*:(?!:))", re.MULTILINE)
"""What only a grammar in Lark has."""
TREE = re.compile("[0-9]{1,3},[0-9]{1,3},[0-9]{1,3}")
TokenLimit = Annotated[int, Meta(ge=-1)]
"""-1 is as many as fit."""
TokenIds = Annotated[list[int], Meta(min_length=1)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Messages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class ModelRequest(Body, kw_only=True):
    """A body that may name the model."""

    model: ShortText | None = None


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class NoFormat(Body, tag_field="type", tag="text"):
    """Any text."""

    @property
    def schema(self) -> None:
        """It has no schema."""


class JsonFormat(Body, tag_field="type", tag="json_object"):
    """Some JSON object, in llama.cpp's API one that matches a schema."""

    given: dict[str, Any] | None = msgspec.field(default=None, name="schema")

    @property
    def schema(self) -> dict[str, Any]:
        """The schema, by default that of all objects."""
        return self.given or {"type": "object"}


class NamedSchema(Body):
    """A JSON schema with what else OpenAI's clients send; answers match it even if not `strict`."""

    schema: dict[str, Any]
    name: ShortText | None = None
    description: RequestText | None = None
    strict: bool | None = None


class SchemaFormat(Body, tag_field="type", tag="json_schema"):
    """JSON that matches a schema."""

    json_schema: NamedSchema

    @property
    def schema(self) -> dict[str, Any]:
        """The schema."""
        return self.json_schema.schema


class StructuredOutputs(Body):
    """The form of an answer, with vLLM's names. A `grammar` is llguidance's Lark, or GBNF."""

    json: dict[str, Any] | RequestText | None = None
    regex: RequestText | None = None
    grammar: RequestText | None = None
    choice: tuple[RequestText, ...] | None = None
    json_object: bool | None = None

    @property
    def _is_object(self) -> bool:
        """Whether any object will do."""
        return bool(self.json_object) and self.json is None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `SamplingParams`. Raises SettingError for GBNF that cannot be read."""
        return {
            "json_schema": {"type": "object"} if self._is_object else self.json,
            "regex": self.regex,
            "grammar": None if self.grammar is None else as_lark(self.grammar),
            "choices": self.choice,
        }


def as_lark(grammar: str) -> str:
    """Return a grammar as Lark; in llama.cpp's form, GBNF, rules have `::=`. Raises SettingError
    for GBNF that is long or cannot be read."""
    if "::=" not in grammar or LARK.search(grammar):
        return grammar
    if len(grammar) > MAX_GBNF:
        raise SettingError(f"grammar: {len(grammar)} characters of GBNF: at most {MAX_GBNF}")
    from llguidance.gbnf_to_lark import gbnf_to_lark  # needed by few

    try:
        return gbnf_to_lark(grammar)
    except Exception as error:  # the library raises plain ones, too, and RecursionError
        raise SettingError(one_line(f"grammar: not readable as GBNF ({error})")) from error


def request_fields() -> list[tuple[str, Any, None]]:
    """Return the parameters in `FIELDS` as fields of a struct: names, types and the default."""
    fields: list[tuple[str, Any, None]] = []
    annotated: Any = Annotated
    for field in spec_fields(GenerationParams):
        if field.name in FIELDS:
            limits = Meta(description=field.option.help, max_length=MAX_ITEMS.get(field.name))
            kind = annotated[field.type, limits] | None
            fields.append((API_NAMES.get(field.name, field.name), kind, None))
    return fields


if TYPE_CHECKING:
    SharedFields = ModelRequest
else:
    SharedFields = msgspec.defstruct(
        "SharedFields", request_fields(), bases=(ModelRequest,), kw_only=True
    )


class GenerationRequest(SharedFields, kw_only=True):
    """The parameters that both endpoints take: those of `FIELDS`, and these.

    Of a prompt of more than `truncate_prompt_tokens` tokens, or with -1 than the context takes, the
    last ones are answered. A response has the `request_id` in its id. With `trace`, a stream says
    which of its tokens were drafted; with `return_token_ids`, answers have the ids of the prompt
    and of their tokens.
    """

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: ShortText | Annotated[list[ShortText], Meta(max_length=MAX_STOPS)] | None = None
    cache_salt: ShortText | None = None
    request_id: ShortText | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    trace: bool | None = None
    return_token_ids: bool | None = None
    response_format: NoFormat | JsonFormat | SchemaFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    tree: ShortText | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def num_logprobs(self) -> int | None:
        """The field `logprobs` of `GenerationParams`."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The field `prompt_logprobs` of `GenerationParams`."""
        return None

    def max_new_tokens(self, context: int) -> int:
        """Return the limit of an answer, for an artifact whose texts have up to `context` tokens.
        Raises SettingError."""
        raise NotImplementedError

    def conversation(self) -> str | None:
        """Return what all requests of a conversation share, None where there is none."""
        return None

    def prompts(self) -> Sequence[Prompt]:
        """Return what is to be answered. Raises PromptError."""
        raise NotImplementedError

    def truncated(self, prompt: TokenizedPrompt, context: int) -> TokenizedPrompt:
        """Return a prompt with `truncate_prompt_tokens` tokens at most. Raises PromptError for one
        with images."""
        most = self.truncate_prompt_tokens
        most = context - 1 if most == -1 else most
        if most is None or len(prompt.tokens) <= most:
            return prompt
        if prompt.images:
            raise PromptError("truncate_prompt_tokens: a prompt with images cannot be cut")
        return TokenizedPrompt(prompt.tokens[len(prompt.tokens) - most :])

    @property
    def form(self) -> dict[str, Any]:
        """The form of answers as fields of `SamplingParams`. Raises SettingError for two forms."""
        schema = None if self.response_format is None else self.response_format.schema
        if self.structured_outputs is None:
            return {"json_schema": schema}
        if schema is not None:
            raise SettingError("response_format and structured_outputs: leave out one")
        return self.structured_outputs.fields

    def parameters(
        self, context: int, cache_salt: str, defaults: Mapping[str, Any] = API_DEFAULTS
    ) -> list[GenerationParams]:
        """Return the parameters of each answer to a prompt, whose rows are cached under a salt.
        `defaults` are those of sampling.

        Raises SettingError for a value outside its range.
        """
        if self.tree is not None and not TREE.fullmatch(self.tree):  # it may not name a file
            raise SettingError("tree: expected DEPTH,TOPK,NODES like 6,8,32")
        named = {name: getattr(self, API_NAMES.get(name, name)) for name in FIELDS}
        values = dict(defaults) if self.tree else {"chain_len": AUTO, **defaults}
        values |= {name: v for name, v in named.items() if v is not None}
        values |= self.form
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        values["top_k"] = max(values.get("top_k", 0), 0)  # -1 is vLLM's "all"
        return GenerationParams(
            **values,
            echo=bool(getattr(self, "echo", False)),  # of completions
            tree=self.tree,
            stop_texts=tuple(filter(None, stops)),
            max_new_tokens=self.max_new_tokens(context),
            logprobs=self.num_logprobs,
            prompt_logprobs=self.num_prompt_logprobs,
            reuse=True,
            cache_salt=cache_salt,
        ).answers()


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: TokenLimit | None = None
    max_tokens: TokenLimit | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None

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
        limit = self.max_tokens
        if self.max_completion_tokens is not None:
            limit = self.max_completion_tokens
        if limit == 0:
            raise SettingError("max_tokens 0: must be at least 1, or -1 for as many as fit")
        return context if limit in (None, -1) else limit

    def conversation(self) -> str:
        """Return a hash of the messages up to the user's first."""
        users = (i for i, message in enumerate(self.messages) if message.role == "user")
        first = next(users, 0)
        return hashlib.sha256(msgspec.json.encode(self.messages[: first + 1])).hexdigest()

    def turn(self, chat: ChatFormat) -> ChatTurn:
        """Return what the request says about the answer's turn. Raises SettingError."""
        policy = call_policy(self.tools, self.tool_choice, self.parallel_tool_calls)
        tools = [] if policy is None else declared(self.tools)
        return ChatTurn(chat, tools, policy, self.chat_template_kwargs, self.reasoning_effort)

    def prompts(self) -> list[list[Message]]:
        """Return the conversation. Raises PromptError for one that does not end as a `Prompt` does,
        and for one of too many parts; SettingError where its last message is not to be continued
        although it is the assistant's, or the other way around."""
        continues = self.messages[-1].role == "assistant"
        flags = self.continue_final_message, self.add_generation_prompt
        if flags[0] not in (None, continues) or flags[1] not in (None, not continues):
            line = "the last message is continued if it is the assistant's, and no other"
            raise SettingError(f"continue_final_message, add_generation_prompt: {line}")
        contents = (message.content for message in self.messages)
        parts = sum(len(content) for content in contents if isinstance(content, list))
        if parts > MAX_PARTS:
            raise PromptError(f"messages: {parts} parts, {MAX_PARTS} at most")
        return [check_messages([message.message() for message in self.messages])]


class CompletionRequest(GenerationRequest, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: RequestText | Annotated[list[RequestText | int | TokenIds], Meta(min_length=1)]
    max_tokens: TokenLimit | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_COMPLETION_LOGPROBS)] | bool | None = None

    @property
    def num_logprobs(self) -> int | None:
        return None if self.logprobs is None else int(self.logprobs)

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Those of an echo alone are computed, and no response has them."""
        if self.echo and self.max_tokens == 0 and self.logprobs is None:
            return 0
        return self.num_logprobs if self.echo else None

    def max_new_tokens(self, context: int) -> int:
        """Return the limit of an answer. Raises SettingError for 0 tokens without an echo."""
        if self.max_tokens == 0 and not self.echo:
            raise SettingError("max_tokens 0: needs echo: true")
        if self.max_tokens == -1:
            return context
        return MAX_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts. Raises PromptError for text and ids together, and for too many."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [part for part in self.prompt if isinstance(part, int)]
        if len(ids) == len(self.prompt):
            return [ids]
        prompts = [part for part in self.prompt if not isinstance(part, int)]
        if ids or len({type(prompt) for prompt in prompts}) > 1:
            raise PromptError("prompt: text, texts, ids or lists of ids, and no two of them")
        if len(prompts) > MAX_PROMPTS:
            raise PromptError(f"prompt: {len(prompts)} prompts, {MAX_PROMPTS} at most")
        return prompts
