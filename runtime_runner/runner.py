"""An opened artifact that generates."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self
from weakref import WeakSet

import msgspec

from eagle_aot.artifact import Constants, ImageInputs
from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.memory import release_memory
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.runtime_runner.adaptive.backlog import CatchUpDrafter
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import AUTO, ChainLen, Shape, Tree
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.engine import Engine, Failed, Request
from eagle_aot.runtime_runner.engine.drafter_session import DrafterSession
from eagle_aot.runtime_runner.engine.engine import PROMPT_SHARE
from eagle_aot.runtime_runner.engine.request import REFUSED
from eagle_aot.runtime_runner.engine.request_checks import (
    check_grows_trees,
    check_prompt,
    chosen_batch_size,
    chosen_chain_len,
    chosen_tree,
)
from eagle_aot.runtime_runner.engine.schedule import BatchSchedule
from eagle_aot.runtime_runner.engine.warm_up import WarmUp
from eagle_aot.runtime_runner.frontend.generation import (
    Callbacks,
    Generation,
    Result,
    TextIterator,
    generate,
    generate_in_order,
    successful,
)
from eagle_aot.runtime_runner.frontend.generation_factory import GenerationFactory
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.prompt_reader import AnyPrompt, PromptReader
from eagle_aot.runtime_runner.images.prompt_image import TokenizedPrompt
from eagle_aot.runtime_runner.images.reader import Source
from eagle_aot.runtime_runner.program.cache_pages import no_memory
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams, recommended
from eagle_aot.runtime_runner.sampling.sampler import Sampler

PARTS = "executor", "drafter", "target", "reader", "batch", "_session", "engine", "_generations"
"""Attributes of a runner that have the program, its weights and caches, or the tokenizer."""


class Runner:
    """An opened artifact. It generates one text at a time or, with its `engine`, several. A context
    manager, which closes it."""

    def __init__(
        self,
        directory: Path,
        executor: Executor,
        constants: Constants,
        drafter: CatchUpDrafter,
        prompt_share: float = PROMPT_SHARE,
        *,
        can_copy_rows: bool = False,
        has_states: bool = False,
        screens_table: bool = False,
        reuse: bool = True,
        images: ImageInputs | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`can_copy_rows` says whether the program has the method `copy_rows`, `images` how its
        prompts contain images, None for text alone. `has_states` says whether the target has
        recurrent states, `screens_table` whether greedy rounds need only largest logits. `check`
        raises ArtifactError where files have changed since the artifact was opened."""
        self.directory = directory
        self.has_states = has_states
        self.executor = executor
        self.constants = constants
        self.drafter = drafter
        self.target = TargetMethods(
            executor,
            constants,
            can_copy_rows=can_copy_rows,
            has_states=has_states,
            screens_table=screens_table,
            images=images,
        )
        self.reader = PromptReader(
            directory, images, constants.max_prefill_chunk, constants.max_seq_len, check
        )
        self._generations = GenerationFactory(self.reader, constants, executor.name, drafter.kind)
        batch, device = constants.max_batch_size, executor.device
        length = constants.max_seq_len + constants.tail
        sampler = Sampler(batch, device, length, constants.vocab_size, constants.max_step_rows)
        self.batch = BatchState(range(batch), constants.tail, device, sampler)
        self._session = DrafterSession(drafter, self.target, self.batch, constants, executor)
        schedule = BatchSchedule(
            self._session.rounds, self._session.chooser, self.adaptive_schedule
        )
        self.engine = Engine(schedule, prompt_share, reuse=reuse, pages=executor.pages)
        self._iterators: WeakSet[Any] = WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # else every name would be an attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raise SettingError for a part that `close` has freed."""
            if name in PARTS and "directory" in vars(self):
                raise SettingError(f"{self.directory}: is closed: open it with load_artifact again")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def close(self) -> None:
        """Free the program, its weights and its caches. Open iterators end; other methods raise
        SettingError afterwards. Raises SettingError while an `AsyncRunner` runs it."""
        if "engine" not in vars(self):
            return
        if self.engine.has_thread:
            raise SettingError(f"{self.directory}: an AsyncRunner runs it: close that first")
        for iterator in list(self._iterators):
            iterator.close()
        for name in PARTS:
            delattr(self, name)
        release_memory()

    @property
    def tokenizer(self) -> Tokenizer:
        """The artifact's tokenizer, loaded when it is first needed. Raises ArtifactError where
        there is none."""
        return self.reader.tokenizer

    @property
    def grows_trees(self) -> bool:
        """Whether drafts may be trees."""
        return self.drafter.grows_trees

    def generate(
        self,
        prompt: AnyPrompt,
        max_new_tokens: int | None = None,
        chain_len: ChainLen | None = None,
        speculate: bool | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        images: Sequence[Source] = (),
        image_tokens: int | None = None,
        on_tokens: Callable[[list[int]], None] = lambda tokens: None,
        on_text: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        **options: Any,
    ) -> Result:
        """Continue a prompt: text, which is one turn of a user unless `raw_prompt`, token ids, or
        messages, `[{"role": "user", "content": "..."}, ...]`, which end with a user's turn, or with
        the beginning of the assistant's.

        `images` are images in the prompt, each of `image_tokens` rows at most: files, their bytes,
        `data:` URLs, PIL images, or rows [count, H] that another encoder made. `options` are the
        other fields of `GenerationParams`; they replace those of `sampling_params`, which may be
        `GenerationParams`, too. `on_tokens` is called with each run of new tokens, `on_text` with
        new text: whole characters, without the beginning of a stop text. `cancelled` is called
        after each token; the generation ends when it returns True.

        Raises PromptError for a prompt that does not fit, SettingError for an argument outside its
        range and while another generation is open, and ArtifactError for text where the artifact
        has no tokenizer.
        """
        options |= {
            "max_new_tokens": max_new_tokens, "chain_len": chain_len, "speculate": speculate
        }  # fmt: skip
        params = GenerationParams.of(sampling_params, options)
        tokenized = self.read(prompt, params, images, image_tokens)
        return self.answer(tokenized, params, Callbacks(on_tokens, on_text, cancelled))

    def stream(
        self,
        prompt: AnyPrompt,
        max_new_tokens: int | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        images: Sequence[Source] = (),
        image_tokens: int | None = None,
        **options: Any,
    ) -> TextIterator:
        """Continue a prompt as `generate` does, and return an iterator over the parts of its text:
        whole characters, without the beginning of a stop text. Its `result` is that of `generate`.
        """
        params = GenerationParams.of(sampling_params, options | {"max_new_tokens": max_new_tokens})
        check_single(params)
        tokenized = self.read(prompt, params, images, image_tokens)
        iterator = TextIterator(
            self.engine, lambda calls: self.generation(tokenized, params.drawn(), calls)
        )
        self._iterators.add(iterator)
        return iterator

    def generate_batch(
        self,
        prompts: Iterable[AnyPrompt],
        max_new_tokens: int | None = None,
        *,
        batch_size: int | None = None,
        sampling_params: SamplingParams | None = None,
        **options: Any,
    ) -> list[Result]:
        """Continue prompts as `generate_many` does, and return all results in the order of the
        prompts. Raises as `generate` does, and the exception of a failed forward."""
        params = GenerationParams.of(sampling_params, options | {"max_new_tokens": max_new_tokens})
        outcomes = self.generate_many(prompts, batch_size, **msgspec.structs.asdict(params))
        return [successful(outcome) for outcome in outcomes]

    def read(
        self,
        prompt: AnyPrompt,
        params: GenerationParams,
        images: Sequence[Source] = (),
        image_tokens: int | None = None,
    ) -> TokenizedPrompt:
        """Return the token ids and images of a prompt, which `answer` takes. Raises as `generate`
        does."""
        return self.reader.read(
            prompt, params.system, raw=params.raw_prompt, images=images, image_tokens=image_tokens
        )

    def encode(
        self, prompt: AnyPrompt, system: str | None = None, *, raw: bool = False
    ) -> list[int]:
        """Return the token ids of a prompt. Raises as `generate` does."""
        return list(self.reader.read(prompt, system, raw=raw).tokens)

    def answer(
        self, prompt: AnyPrompt, params: GenerationParams, callbacks: Callbacks | None = None
    ) -> Result:
        """Continue a prompt as `generate` does, with all parameters in one value. The `parameters`
        of an earlier result give the same tokens for its prompt."""
        check_single(params)
        return generate(self.engine, self.generation(prompt, params.drawn(), callbacks))

    def generate_many(
        self,
        prompts: Iterable[AnyPrompt],
        batch_size: int | None = None,
        *,
        keep_going: bool = False,
        **options: Any,
    ) -> Iterator[Result | Failed]:
        """Continue prompts as `generate` does, `batch_size` of them in parallel, or as many as
        there are sequences. `options` are fields of `GenerationParams`, the same for all prompts.

        Yields `n` results for each prompt, in the order of the prompts and as early as possible, or
        why a forward failed. Raises as `generate` does when a prompt's turn comes; with
        `keep_going`, yields why the prompt cannot be served instead.
        """
        checked_size = chosen_batch_size(batch_size, self.constants)
        params = GenerationParams(**options)

        def generation(prompt: AnyPrompt, params: GenerationParams) -> Generation | Failed:
            try:
                return self.generation(prompt, params)
            except PromptError as error:
                if not keep_going:
                    raise
                return Failed(REFUSED, str(error), error)

        generations = (
            generation(prompt, each) for prompt in prompts for each in params.answers()
        )  # each prompt draws a seed of its own
        iterator = generate_in_order(self.engine, generations, checked_size)
        self._iterators.add(iterator)
        return iterator

    def request(self, prompt: AnyPrompt, params: GenerationParams) -> Request:
        """Return a request for the engine, whose events the caller processes. Raises as `generate`
        does."""
        return self.generation(prompt, params.drawn()).request

    def generation(
        self, prompt: AnyPrompt, params: GenerationParams, callbacks: Callbacks | None = None
    ) -> Generation:
        """Return a generation for the engine, checked before anything is run. Raises as `generate`
        does."""
        chain_len, tree = self._drafts(params.chain_len, params.tree)
        tokenized = self.read(prompt, params)
        check_prompt(tokenized.tokens, self.constants)
        drafts = params.speculate and self._generations.remaining_tokens(tokenized, params) > 1
        if drafts and chain_len == AUTO and not self.engine.busy:
            self.adaptive_schedule(tree == AUTO)  # measured while no request runs
        return self._generations.make(
            tokenized,
            params,
            callbacks or Callbacks(),
            chain_len=chain_len if drafts else 0,
            tree=tree if drafts else None,
        )

    @cached_property
    def recommended_sampling(self) -> dict[str, Any]:
        """The sampling parameters that the model's makers recommend, by name; often empty.

        They are not applied unless they are passed to `generate`.
        """
        values = recommended(self.directory)
        self.reader.check()
        return values

    def _drafts(
        self, chain_len: ChainLen | None, tree: Tree | None
    ) -> tuple[ChainLen, Shape | Literal["auto"] | None]:
        """Return the chain length, and the tree that replaces the chain. Raises SettingError for
        what artifact or drafter do not take."""
        if tree is None:
            return chosen_chain_len(chain_len, self.constants), None
        if chain_len is not None:
            raise SettingError(f"chain length {chain_len} and tree {tree}: name one of them")
        kind, grows_trees = self.drafter.kind, self.drafter.grows_trees
        if tree == AUTO:
            check_grows_trees(tree, kind, grows_trees)
            return AUTO, AUTO
        shape = chosen_tree(tree, kind, grows_trees, self.constants)
        return shape.depth, shape

    def round(self, shape: Shape | int, sequences: int = 1) -> Round:
        """Return the round of that many sequences with drafts of that shape, or of as many as there
        are rows for; a number is a chain's length, 0 for plain decoding. It is made and recorded
        once.

        The prefix cache is forgotten. Raises SettingError for a tree that artifact or drafter do
        not take.
        """
        if isinstance(shape, Shape) and not shape.is_chain:
            chosen_tree(shape, self.drafter.kind, self.drafter.grows_trees, self.constants)
        self.engine.sequence_pool.lend(sequences)
        if self.executor.device.type == "cuda":
            self._session.run_short_prompt()  # what is recorded starts from a state that exists
        return self._session.rounds.get_round(
            sequences, Shape.chain(shape) if isinstance(shape, int) else shape
        )

    def reserve(self, sequence: int, length: int) -> None:
        """Have memory for a text of `length` tokens that the caller runs in a sequence itself.
        Raises UnsupportedError where it is too small."""
        pages = self.executor.pages
        if pages is not None and not pages.grow(sequence, length):
            raise no_memory(length)

    def warm_up(
        self,
        batch_size: int | None = None,
        chain_len: ChainLen | None = None,
        speculate: bool = True,
        *,
        tree: Tree | None = None,
        sampling: SamplingParams = GREEDY,
    ) -> WarmUp:
        """Make all rounds that `batch_size` requests in parallel may need, or as many as there are
        sequences, so that no request waits for a recording. `chain_len`, `speculate` and `tree`
        are those of `generate`. One set of rounds serves all `sampling` of one mode, with log
        probabilities or without.

        Raises SettingError as `generate` does and while requests run, and UnsupportedError where
        memory is too small for a round.
        """
        if self.engine.busy:
            raise SettingError("warm_up: requests are running: call it before the first request")
        checked_size = chosen_batch_size(batch_size, self.constants)
        chosen, shape = self._drafts(chain_len, tree) if speculate else (0, None)
        fixed = shape if isinstance(shape, Shape) else None
        if chosen != AUTO:
            fixed = fixed or Shape.chain(chosen)
        self.engine.sequence_pool.lend(1)
        with self.batch.sampler.reserve(sampling):
            return self._session.warm_up(checked_size, fixed, trees=shape == AUTO)

    def adaptive_schedule(self, trees: bool) -> AdaptiveSchedule:
        """Return what chooses among chains and plain decoding by speed, with `trees` among trees as
        well.

        It first measures what rounds cost, which takes seconds. Raises SettingError where that
        would overwrite the caches of running requests.
        """
        if not self._session.is_measured(trees):
            if self.engine.busy:
                setting = f"tree {AUTO}" if trees else f"chain length {AUTO}"
                raise SettingError(f"{setting}: not measured: call warm_up first")
            self.engine.sequence_pool.lend(1)
        return self._session.adaptive(trees)


def check_single(params: GenerationParams) -> None:
    """Raise SettingError for parameters of several answers to a prompt."""
    if params.n > 1:
        raise SettingError(f"n {params.n}: this gives one answer: use generate_batch")
