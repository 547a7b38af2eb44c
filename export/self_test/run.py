"""The self-test of a loaded pair: prompts, device, failures, and what an export records."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import ArtifactError, ExportError, PromptError, SettingError
from eagle_aot.common.memory import shortage
from eagle_aot.common.progress import Progress
from eagle_aot.common.prompts import is_ids
from eagle_aot.common.self_test import identity, self_test_prompts
from eagle_aot.common.threads import torch_threads
from eagle_aot.export.drafters.registry import HEADS
from eagle_aot.export.loading.checkpoints import ResolvedCheckpoints
from eagle_aot.export.loading.load import LoadedPair
from eagle_aot.export.prepare.cpu_weights import dequantize_for_eager
from eagle_aot.export.prepare.int4 import dequantize_int4
from eagle_aot.export.prepare.quantized_modules import DynamicLinear
from eagle_aot.export.self_test.text import target_texts
from eagle_aot.export.self_test.verdict import RANDOM, Verdict, rank, unknown
from eagle_aot.export.spec import CUDA, ExportSpec
from eagle_aot.targets import TapTarget
from eagle_aot.targets.int4 import Int4Linear

LARGE = 10**9
"""Parameters of a target above which a host takes minutes for its text."""
SMALL = 10**8
"""Parameters of a target whose operators are shorter than waking a second thread."""


def self_test(loaded: LoadedPair, spec: ExportSpec, progress: Progress) -> Verdict:
    """Test the drafter of a loaded pair where its backend computes: on the GPU or the host.

    Caches are emptied. Raises PromptError for a user's prompts that cannot be read or are outside
    the vocabulary, ExportError where computing fails.
    """
    if loaded.checkpoints.spec.is_dummy:
        return unknown(RANDOM)
    prompts = self_test_prompts(spec.self_test_prompts)
    try:
        tokenizer = loaded.checkpoints.provenance.tokenizer
        encoded = [p if is_ids(p) else tokenizer.encode(p) for p in prompts]
        verdict = rank_readings(loaded, encoded, spec.backend, progress)
    except ArtifactError as error:
        return unknown(str(error))
    except PromptError:
        if spec.self_test_prompts is not None:
            raise
        return unknown("its tokenizer gives no ids, or such as lie outside its vocabulary")
    except (MemoryError, RuntimeError) as error:  # torch reports a lack of memory as either
        if reason := shortage(error):
            return unknown(reason)
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        way_out = "--no-self-test exports without it"
        raise ExportError(f"self-test failed: {first_line}: {way_out}") from error
    verdict.details["prompts_sha256"] = identity(prompts)
    return verdict


def rank_readings(
    loaded: LoadedPair, prompts: Sequence[Sequence[int]], backend: str, progress: Progress
) -> Verdict:
    """Let the target answer prompts of token ids, and rank the drafter's readings by its texts."""
    device = torch.device("cuda" if backend == CUDA else "cpu")
    # A host computes faster with dense weights.
    pair = dequantize_for_eager(dequantize_int4(loaded.pair)) if backend != CUDA else loaded.pair
    target, draft, stage = pair.target, pair.draft, progress.stage("self-test: text")
    threads = 1 if count_weights(target) < SMALL else torch.get_num_threads()
    with stage as begin, moved(pair, device), torch_threads(threads):
        eos_ids = loaded.checkpoints.provenance.eos_ids
        texts = target_texts(target, draft.tap_layers, prompts, eos_ids, device)
        begin("self-test: drafts")
        try:
            return rank(HEADS[draft.kind].readings(pair), texts, target.vocab_size)
        finally:
            pair.reset_cache()


def check_head(checkpoints: ResolvedCheckpoints) -> None:
    """Raise SettingError where there is no head to test."""
    if not checkpoints.spec.has_head:
        raise SettingError(
            f"the self-test ranks readings of a head, and {checkpoints.spec.target_model} has none "
            "here: eagle-check --self-test checks what an artifact drafts"
        )


def pairing_record(
    loaded: LoadedPair, spec: ExportSpec, progress: Progress
) -> dict[str, Any] | None:
    """Return the manifest's record of an export's self-test; None where the test is left out, or
    there is no head to test.

    A warning is printed to stderr, anything else only to a terminal: the text is right either way.
    """
    if spec.no_self_test or not loaded.checkpoints.spec.has_head:
        return None
    is_large = count_weights(loaded.pair.target) > LARGE
    if spec.backend != CUDA and is_large and spec.self_test_prompts is None:
        verdict = unknown("it takes minutes without a GPU: eagle-inspect draft --self-test runs it")
    else:
        verdict = self_test(loaded, spec, progress)
    if spec.backend == CUDA:
        torch.cuda.empty_cache()  # compilers may need the memory in processes of their own
    console = progress.console
    if verdict.is_warning or console.is_terminal:
        verdict.announce(console)
    return verdict.to_json()


def count_weights(target: TapTarget) -> int:
    """Return the number of weights of the input table and of all linears."""
    assert isinstance(target, nn.Module)
    kinds = nn.Linear | Int4Linear | DynamicLinear
    linears = [module for module in target.modules() if isinstance(module, kinds)]
    sizes = (linear.in_features * linear.out_features for linear in linears)
    return target.vocab_size * target.hidden_size + sum(sizes)


@contextmanager
def moved(pair: nn.Module, device: torch.device) -> Iterator[None]:
    """Run a pair that is on the host on `device`, and restore its original tensors afterwards.

    Moving it back and forth would separate tensors that share memory, which exports store once.
    """
    if device.type == "cpu":
        yield
        return
    homes: list[dict[str, Any]] = [
        home for m in pair.modules() for home in (m._parameters, m._buffers)
    ]
    saved = [dict(home) for home in homes]
    copies: dict[tuple[int, torch.Size, tuple[int, ...]], Tensor] = {}
    try:
        for home in homes:
            for name, tensor in home.items():
                if tensor is not None:
                    home[name] = _copy(tensor, device, copies)
        yield
    finally:
        for home, tensors in zip(homes, saved, strict=True):
            home.update(tensors)


def _copy(
    tensor: Tensor,
    device: torch.device,
    copies: dict[tuple[int, torch.Size, tuple[int, ...]], Tensor],
) -> Tensor:
    """Return one copy of all tensors that view the same memory in the same way."""
    key = tensor.data_ptr(), tensor.shape, tensor.stride()
    if key not in copies or not tensor.numel():
        copies[key] = tensor.detach().to(device)
    copy = copies[key]
    return nn.Parameter(copy, requires_grad=False) if isinstance(tensor, nn.Parameter) else copy
