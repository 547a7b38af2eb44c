"""The self-test from prompts to verdict."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from eagle_aot.common.errors import ArtifactError, ExportError, PromptError
from eagle_aot.common.memory import shortage
from eagle_aot.common.prompts import Prompt
from eagle_aot.common.self_test import CHAIN_LEN, MAX_NEW_TOKENS, identity, self_test_prompts
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.self_test.comparison import is_better, is_enough
from eagle_aot.export.drafters.eagle3.self_test.device import moved
from eagle_aot.export.drafters.eagle3.self_test.reading import (
    Reading,
    chosen_reading,
    other_readings,
)
from eagle_aot.export.drafters.eagle3.self_test.report import announce
from eagle_aot.export.drafters.eagle3.self_test.score import Score, score_text
from eagle_aot.export.drafters.eagle3.self_test.text import Text, continue_greedily
from eagle_aot.export.drafters.eagle3.self_test.verdict import (
    RANDOM,
    Entry,
    Verdict,
    judge,
    unknown,
)
from eagle_aot.export.load import DUMMY, Source
from eagle_aot.export.lowering.backend import CUDA
from eagle_aot.export.options import ExportOptions
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.fold import fold_int4
from eagle_aot.export.publish.describe import read_eos_ids
from eagle_aot.targets import TapTarget
from eagle_aot.targets.int4 import Int4Linear

LARGE = 10**9
"""Parameters of a target above which a host takes minutes for its text."""
SMALL = 10**8
"""Parameters of a target whose operators are shorter than waking a second thread."""


def self_test(
    pair: Pair,
    source: Source,
    backend: str,
    options: ExportOptions,
) -> Verdict:
    """Rank the readings of a loaded pair, where its backend computes: on the GPU or the host.

    On the host INT4 weights become dense, as an export wants them there. Caches are emptied; the
    tapped layers stay. Raises PromptError for a user's prompts that cannot be read or are outside
    the vocabulary, ExportError where computing fails.
    """
    if source.load_format == DUMMY:
        return unknown(RANDOM)
    prompts = self_test_prompts(options.self_test_prompts)
    device = torch.device("cuda" if backend == CUDA else "cpu")
    stage = options.progress.stage("self-test: text")
    try:
        encoded = encode(prompts, source)
        if device.type == "cpu":
            fold_int4(pair)
        with stage as begin, moved(pair, device), threads_for(pair.target):
            texts = target_texts(pair, encoded, read_eos_ids(source.target_dir), device)
            begin("self-test: drafts")
            verdict = rank(pair.draft, texts, pair.target.num_hidden_layers)
    except ArtifactError as error:
        return unknown(str(error))
    except PromptError:
        if options.self_test_prompts is not None:
            raise
        return unknown("its tokenizer gives no ids, or such as lie outside its vocabulary")
    except (MemoryError, RuntimeError) as error:  # how torch says that memory is short
        if reason := shortage(error):
            return unknown(reason)
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        way_out = "--no-self-test exports without it"
        raise ExportError(f"self-test failed: {first_line}: {way_out}") from error
    verdict.details["prompts_sha256"] = identity(prompts)
    return verdict


def pairing_record(
    pair: Pair, source: Source, backend: str, options: ExportOptions
) -> dict[str, Any] | None:
    """The manifest's record of a self-test that is part of an export; None where it is left out.

    A warning goes to stderr, anything else only to a terminal: the text is right either way.
    """
    if options.no_self_test:
        return None
    if is_costly(pair, backend) and options.self_test_prompts is None:
        verdict = unknown("on this host that takes minutes, which eagle-export --self-test spends")
    else:
        verdict = self_test(pair, source, backend, options)
    if backend == CUDA:
        torch.cuda.empty_cache()  # compilers may take room in processes of their own
    console = options.progress.console
    if verdict.is_warning or console.is_terminal:
        announce(verdict, console)
    return verdict.to_json()


def is_costly(pair: Pair, backend: str) -> bool:
    """Whether it takes so long that an export leaves it to whoever asks for it."""
    return backend != CUDA and count_weights(pair.target) > LARGE


def count_weights(target: TapTarget) -> int:
    """Of the input table and all linears."""
    assert isinstance(target, nn.Module)
    sizes = [
        linear.in_features * linear.out_features
        for linear in target.modules()
        if isinstance(linear, nn.Linear | Int4Linear)
    ]
    return target.embed_weight.numel() + sum(sizes)


@contextmanager
def threads_for(target: TapTarget) -> Iterator[None]:
    """One for a small target, as many as before for others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if count_weights(target) < SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def encode(prompts: Sequence[Prompt], source: Source) -> list[Sequence[int]]:
    """Token ids, text as one turn of the target's chat. Raises ArtifactError."""
    if all(not isinstance(prompt, str) for prompt in prompts):
        return [prompt for prompt in prompts if not isinstance(prompt, str)]
    assert source.target_dir is not None
    tokenizer = Tokenizer(source.target_dir)
    return [tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]


def target_texts(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    device: torch.device,
) -> list[Text]:
    """The target's answers, where the context has room for one that can be drafted."""
    target, taps = pair.target, pair.draft.config.tap_layers
    near = {tap + step for tap in taps for step in (-1, 0, 1)}
    boundaries = sorted(near & set(range(target.num_hidden_layers + 1)))
    fitting = [prompt for prompt in prompts if len(prompt) + 1 < target.max_seq_len]
    try:
        texts = [
            continue_greedily(target, prompt, boundaries, MAX_NEW_TOKENS, eos_ids, device)
            for prompt in fitting
        ]
    finally:
        target.set_eagle_tap_layers(taps)
        target.reset_cache()
    return [text for text in texts if text.slots > text.first_anchor]


def rank(draft: Eagle3Draft, texts: Sequence[Text], num_layers: int) -> Verdict:
    """Every reading on every text."""
    if not texts:
        return unknown("no prompt has an answer of two tokens within the context")
    chosen = chosen_reading(draft)
    measured = score(draft, chosen, texts)
    if not is_enough(measured):
        return unknown(f"{len(measured.labels)} positions are too few to tell")
    found = Entry(reading=chosen, score=measured, control=score(draft, chosen.control(), texts))
    others = [
        _entry(draft, reading, texts, measured) for reading in other_readings(draft, num_layers)
    ]
    details = {
        "prompts": len(texts),
        "positions": len(measured.labels),
        "chain_len": CHAIN_LEN,
        "max_new_tokens": MAX_NEW_TOKENS,
    }
    return judge(found, others, details)


def score(draft: Eagle3Draft, reading: Reading, texts: Sequence[Text]) -> Score:
    """Of all texts together."""
    return Score.total([score_text(draft, reading, text, CHAIN_LEN) for text in texts])


def _entry(draft: Eagle3Draft, reading: Reading, texts: Sequence[Text], chosen: Score) -> Entry:
    """With a control where it drafts better than the chosen one."""
    found = score(draft, reading, texts)
    if not is_better(chosen, found):
        return Entry(reading=reading, score=found)
    return Entry(reading=reading, score=found, control=score(draft, reading.control(), texts))
