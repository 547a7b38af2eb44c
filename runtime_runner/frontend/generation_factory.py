"""Makes generations of prompts: requests to the engine, and what reads their tokens."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Literal

from eagle_aot.artifact import Constants, tokenizer_files
from eagle_aot.common.tokenizer import VOCABULARY
from eagle_aot.runtime_runner.decode.shape import ChainLen, Shape
from eagle_aot.runtime_runner.engine import Limits, Request
from eagle_aot.runtime_runner.engine.request_checks import all_stop_ids
from eagle_aot.runtime_runner.frontend.generation import Callbacks, Generation
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.prompt_reader import PromptReader
from eagle_aot.runtime_runner.frontend.stream import TextStream, decode_answer
from eagle_aot.runtime_runner.images.prompt_image import TokenizedPrompt
from eagle_aot.runtime_runner.sampling.constraint import Constraint, GrammarCompiler


class GenerationFactory:
    """Makes the generations of one artifact."""

    def __init__(
        self, reader: PromptReader, constants: Constants, executor: str, drafter: str
    ) -> None:
        """`executor` and `drafter` are the names that results have."""
        self._reader, self._constants = reader, constants
        self._executor, self._drafter = executor, drafter

    def remaining_tokens(self, prompt: TokenizedPrompt, params: GenerationParams) -> int:
        """Return how many tokens an answer may have."""
        return min(params.max_new_tokens, self._constants.max_seq_len - len(prompt.tokens))

    def make(
        self,
        prompt: TokenizedPrompt,
        params: GenerationParams,
        callbacks: Callbacks,
        *,
        chain_len: ChainLen,
        tree: Shape | Literal["auto"] | None,
    ) -> Generation:
        """Return a generation with these drafts. Raises SettingError for parameters that do not fit
        the artifact, and ArtifactError for text where it has no tokenizer."""
        ids = list(prompt.tokens)
        text = self._stream(params, callbacks.on_text, ids)
        stop_ids = all_stop_ids(params.stop_ids, self._constants, ignore_eos=params.ignore_eos)
        params.check_vocabulary(self._constants.vocab_size, stop_ids)
        constraint = self._constraint(params)

        def is_stop(token: int) -> bool:
            if constraint is not None:
                constraint.advance(token)
            return text.add(token) or callbacks.cancelled()

        return Generation(
            request=Request(
                prompt=prompt.tokens,
                images=prompt.images,
                limits=Limits(
                    max_new_tokens=self.remaining_tokens(prompt, params),
                    stop_ids=stop_ids,
                    is_stop=is_stop,
                ),
                chain_len=chain_len,
                tree=tree,
                reuse=params.reuse,
                cache_salt=params.cache_salt,
                sampling=params,
                constraint=constraint,
            ),
            parameters=params,
            text=text,
            prompt_text=self._offsets(params.prompt_logprobs),
            decode=partial(self._decode, prompt=ids, visible_ids=params.visible_ids),
            callbacks=callbacks,
            executor=self._executor,
            drafter=self._drafter if params.speculate else None,
        )

    def _constraint(self, params: GenerationParams) -> Constraint | None:
        """Return what holds an answer to its form. Raises SettingError."""
        return None if params.structure is None else self._grammars.compile(*params.structure)

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        self._reader.check()
        path = self._reader.directory / VOCABULARY
        return GrammarCompiler(path, self._constants.vocab_size, self._constants.eos_ids)

    def _stream(
        self, params: GenerationParams, on_text: Callable[[str], None] | None, prompt: list[int]
    ) -> TextStream:
        """Return what finds stop texts and offsets, and passes text on."""
        prefix = self._decode(prompt) or "" if params.echo else ""
        if not params.stop_texts and on_text is None and not prefix:
            return self._offsets(params.logprobs, prompt, params.visible_ids)
        decode = self._decoder(params.visible_ids)
        return TextStream(decode, params.stop_texts, on_text, prefix, prompt)

    def _offsets(
        self, logprobs: int | None, prompt: Sequence[int] = (), visible_ids: Sequence[int] = ()
    ) -> TextStream:
        """Return what finds the offsets of tokens after a `prompt`, if log probabilities are
        requested."""
        if logprobs is None or not self._has_tokenizer:
            return TextStream(prompt=prompt)
        return TextStream(self._decoder(visible_ids), prompt=prompt)

    def _decode(
        self, ids: list[int], prompt: Sequence[int] = (), visible_ids: Sequence[int] = ()
    ) -> str | None:
        """Return the text that tokens add to that of a `prompt`, None without a tokenizer."""
        if not self._has_tokenizer:
            return None
        return decode_answer(self._decoder(visible_ids), prompt, ids)

    def _decoder(self, visible_ids: Sequence[int]) -> Callable[[list[int]], str]:
        """Return what makes text of tokens, with the special ones among `visible_ids`. Raises
        ArtifactError without a tokenizer."""
        return partial(self._reader.tokenizer.decode, visible_ids=visible_ids)

    @cached_property
    def _has_tokenizer(self) -> bool:
        return bool(tokenizer_files(self._reader.directory))
