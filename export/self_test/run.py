"""The self-test around a drafter's own: prompts, device, what can go wrong, and what is told."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from eagle_aot.common.errors import ArtifactError, ExportError, PromptError, SettingError
from eagle_aot.common.memory import shortage
from eagle_aot.common.prompts import Prompt, is_ids
from eagle_aot.common.self_test import identity, self_test_prompts
from eagle_aot.common.threads import torch_threads
from eagle_aot.export.drafters.registry import HEADS
from eagle_aot.export.drafters.verdict import RANDOM, Verdict, announce, unknown
from eagle_aot.export.loading.load import LoadedPair
from eagle_aot.export.loading.provenance import Provenance
from eagle_aot.export.loading.source import Source
from eagle_aot.export.lowering.backend import CUDA
from eagle_aot.export.options import ExportOptions
from eagle_aot.export.prepare.cpu_weights.lighten import eager
from eagle_aot.export.prepare.cpu_weights.linear import DynamicLinear
from eagle_aot.export.prepare.fold import fold_int4
from eagle_aot.export.self_test.device import moved
from eagle_aot.targets import TapTarget
from eagle_aot.targets.int4 import Int4Linear

LARGE = 10**9
"""Parameters of a target above which a host takes minutes for its text."""
SMALL = 10**8
"""Parameters of a target whose operators are shorter than waking a second thread."""


def self_test(loaded: LoadedPair, backend: str, options: ExportOptions) -> Verdict:
    """What the drafter of a loaded pair says, where its backend computes: on the GPU or the host.

    Caches are emptied. Raises PromptError for a user's prompts that cannot be read or are outside
    the vocabulary, ExportError where computing fails.
    """
    if loaded.source.is_dummy:
        return unknown(RANDOM)
    prompts = self_test_prompts(options.self_test_prompts)
    try:
        verdict = _of_drafter(loaded, prompts, backend, options)
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


def _of_drafter(
    loaded: LoadedPair, prompts: Sequence[Prompt], backend: str, options: ExportOptions
) -> Verdict:
    """On the host of dense weights, which compute faster there."""
    provenance, stage = loaded.source.provenance, options.progress.stage("self-test: text")
    encoded = encode(prompts, provenance)
    device = torch.device("cuda" if backend == CUDA else "cpu")
    pair = eager(fold_int4(loaded.pair)) if device.type == "cpu" else loaded.pair
    with stage as begin, moved(pair, device), torch_threads(threads_for(pair.target)):
        kind = HEADS[pair.draft.kind]
        return kind.self_test(pair, encoded, provenance.eos_ids, device, begin)


def check_head(source: Source) -> None:
    """Raise SettingError where there is no head to test."""
    if not source.has_head:
        raise SettingError(
            f"--self-test asks how a head reads its target, and {source.target_model} has none "
            "here: eagle-run --self-test checks what an artifact drafts"
        )


def pairing_record(
    loaded: LoadedPair, backend: str, options: ExportOptions
) -> dict[str, Any] | None:
    """The manifest's record of a self-test that is part of an export; None where it is left out,
    or where there is no head to test.

    A warning goes to stderr, anything else only to a terminal: the text is right either way.
    """
    if options.no_self_test or not loaded.source.has_head:
        return None
    if is_costly(loaded.pair.target, backend) and options.self_test_prompts is None:
        verdict = unknown("on this host that takes minutes, which eagle-export --self-test spends")
    else:
        verdict = self_test(loaded, backend, options)
    if backend == CUDA:
        torch.cuda.empty_cache()  # compilers may take room in processes of their own
    console = options.progress.console
    if verdict.is_warning or console.is_terminal:
        announce(verdict, console)
    return verdict.to_json()


def is_costly(target: TapTarget, backend: str) -> bool:
    """Whether it takes so long that an export leaves it to whoever asks for it."""
    return backend != CUDA and count_weights(target) > LARGE


def count_weights(target: TapTarget) -> int:
    """Of the input table and all linears."""
    assert isinstance(target, nn.Module)
    sizes = [
        linear.in_features * linear.out_features
        for linear in target.modules()
        if isinstance(linear, nn.Linear | Int4Linear | DynamicLinear)
    ]
    return target.vocab_size * target.hidden_size + sum(sizes)


def threads_for(target: TapTarget) -> int:
    """One for a small target, as many as there are for others."""
    return 1 if count_weights(target) < SMALL else torch.get_num_threads()


def encode(prompts: Sequence[Prompt], provenance: Provenance) -> list[Sequence[int]]:
    """Token ids, text as one turn of the target's chat. Raises ArtifactError and PromptError."""
    return [p if is_ids(p) else provenance.tokenizer.encode(p) for p in prompts]
