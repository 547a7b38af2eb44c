"""Endpoints for token ids: /tokenize and /detokenize, as vLLM has them."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from msgspec import Meta

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.runtime_runner.serve.api.bodies import BodyReader
from eagle_aot.runtime_runner.serve.api.messages import RequestText
from eagle_aot.runtime_runner.serve.api.requests import (
    ChatCompletionRequest,
    Messages,
    ModelRequest,
)
from eagle_aot.runtime_runner.serve.api.tools import Tools
from eagle_aot.runtime_runner.serve.service import ServedModel

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
MAX_TOKENS = 1 << 17
"""The limit of ids that are decoded, in a tenth of a second."""


class TokenizeRequest(ModelRequest, kw_only=True):
    """The body of POST /tokenize: a text, or what a chat has. llama.cpp's name for `prompt` is
    `content`."""

    prompt: RequestText | None = None
    content: RequestText | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    async def ids(self, model: ServedModel) -> Sequence[int]:
        """Return the ids that an answer would continue. Raises PromptError and SettingError."""
        texts = [text for text in (self.prompt, self.content) if text is not None]
        if len(texts) + (self.messages is not None) != 1:
            raise PromptError("prompt or messages: give one of them")
        if self.messages is not None:
            return await self._ids_of_chat(model, self.messages)
        if self.add_special_tokens is False:
            encode = model.tokenizer.ids
            return await asyncio.to_thread(encode, texts[0], add_special_tokens=False)
        return (await model.read(texts[0], raw=True)).tokens

    async def _ids_of_chat(self, model: ServedModel, messages: Messages) -> Sequence[int]:
        if self.add_special_tokens:
            raise SettingError("add_special_tokens: the chat template adds them")
        chat = ChatCompletionRequest(
            messages=messages,
            tools=self.tools,
            chat_template_kwargs=self.chat_template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )
        turn = chat.turn(model.chat)
        turns, values = turn.messages(chat.prompts()[0]), turn.template_values
        return (await model.read(turns, raw=False, template_values=values)).tokens


class DetokenizeRequest(ModelRequest, kw_only=True):
    """The body of POST /detokenize."""

    tokens: Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 31)]], Meta(max_length=MAX_TOKENS)]

    async def text(self, model: ServedModel) -> str:
        """Return the text of the ids, special tokens included. Raises PromptError."""
        for token in self.tokens:
            if model.tokenizer.word(token) is None:
                raise PromptError(f"tokens: {token} is not in the vocabulary")
        decode = model.tokenizer.decode
        return await asyncio.to_thread(decode, self.tokens, skip_special_tokens=False)


def token_endpoints(model: ServedModel, bodies: BodyReader) -> APIRouter:
    """Return the endpoints for token ids of one model."""
    router = APIRouter()

    @router.post(TOKENIZE)
    async def tokenize(connection: Request) -> dict[str, Any]:
        body = await bodies.read_struct(connection, TokenizeRequest)
        ids = await body.ids(model)
        words = [model.tokenizer.word(token) for token in ids] if body.return_token_strs else None
        counts = {"count": len(ids), "max_model_len": model.context}
        return counts | {"tokens": [*ids], "token_strs": words}

    @router.post(DETOKENIZE)
    async def detokenize(connection: Request) -> dict[str, str]:
        body = await bodies.read_struct(connection, DetokenizeRequest)
        return {"prompt": await body.text(model)}

    return router
