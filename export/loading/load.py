"""Load target and drafter as a pair on the host."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn

from eagle_aot.artifact import LOSSLESS
from eagle_aot.common.errors import ExportError
from eagle_aot.common.memory import shortage
from eagle_aot.export.drafters.description import Facts
from eagle_aot.export.drafters.protocol import DraftModel
from eagle_aot.export.drafters.registry import HEADS, KINDS, kind_of_checkpoint
from eagle_aot.export.loading.checkpoints import ResolvedCheckpoints, target_name
from eagle_aot.export.loading.quantise import has_smaller_table, quantise_draft, quantise_table
from eagle_aot.export.lowering.backend import DTYPES
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.quantized_modules import DynamicLinear, QuantizedExpertLinears
from eagle_aot.export.prepare.screened_table import screen_table
from eagle_aot.export.spec import AUTO, CUDA
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint, read_config
from eagle_aot.targets.decoder.experts import ExpertLinears, Int4ExpertLinears
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.images import ImageSupport, dummy_images, load_images
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.quantise import SCHEMES

DUMMY_SEED = 0  # the same command gives the same weights
DENSE, INT8_ROWS = "dense", "int8-rows"

Formats = dict[str, dict[str, int]]
LinearKind = (
    nn.Linear
    | Int4Linear
    | DynamicLinear
    | ExpertLinears
    | Int4ExpertLinears
    | QuantizedExpertLinears
)


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A pair as its checkpoints hold it, and what they say.

    `reading` records how the drafter's files were read, and `linears` how many linears of each name
    have which format. `checkpoints` has the options and everything else that is read.
    """

    pair: Pair
    checkpoints: ResolvedCheckpoints
    reading: Facts
    linears: Formats


def load_pair(
    checkpoints: ResolvedCheckpoints, dtype: torch.dtype, caches: CacheSpec, *, images: bool = False
) -> LoadedPair:
    """Load target and drafter on the host and check them against each other.

    Weights and activations have `dtype`; KV caches are made by `caches`, which has a dtype of its
    own. With `images` the target's image encoder is loaded, too.
    """
    spec = checkpoints.spec
    load_target = _dummy_target if spec.is_dummy else _target
    try:
        target = load_target(checkpoints, dtype, caches)
        draft, reading = _load_draft(checkpoints, target, dtype, caches)
        image_support = _load_images(checkpoints, target, dtype) if images else None
        draft_module = cast(nn.Module, draft)
        own = dtype == DTYPES[CUDA] and has_smaller_table(spec.draft_quant, spec.table_quant)
        quantise_draft(draft_module, target, spec.draft_quant, own_table=own)
        quantise_table(target, draft_module, spec.table_quant)
    except (MemoryError, RuntimeError) as error:  # torch reports a lack of memory as either
        reason = shortage(error) or next(iter(str(error).splitlines()), "no reason given")
        raise ExportError(f"loading failed: {reason}") from error
    pair = Pair(target, draft, image_support)
    if spec.table_quant == LOSSLESS:
        screen_table(pair)
    return LoadedPair(pair, checkpoints, reading, linear_formats(pair))


def load_by_gpu(
    checkpoints: ResolvedCheckpoints, dtype: torch.dtype, caches: CacheSpec, *, images: bool = False
) -> LoadedPair:
    """Load the pair for an export: for CUDA its caches take no memory until methods are lowered.

    A GPU draws a dummy's random weights: a host takes minutes for 30 billion.
    """
    if dtype != DTYPES[CUDA]:
        return load_pair(checkpoints, dtype, caches, images=images)
    caches = replace(caches, on_host=True)
    if not checkpoints.spec.is_dummy:
        return load_pair(checkpoints, dtype, caches, images=images)
    with torch.device(CUDA):
        loaded = load_pair(checkpoints, dtype, caches, images=images)
    loaded.pair.cpu()
    torch.cuda.empty_cache()  # compilers may need the memory in processes of their own
    return loaded


def _dummy_target(
    checkpoints: ResolvedCheckpoints, dtype: torch.dtype, caches: CacheSpec
) -> TapTarget:
    assert checkpoints.target.dummy is not None
    torch.manual_seed(DUMMY_SEED)
    return checkpoints.target.dummy(dtype, caches, checkpoints.spec.dummy_layers)


def _target(checkpoints: ResolvedCheckpoints, dtype: torch.dtype, caches: CacheSpec) -> TapTarget:
    spec = checkpoints.spec
    assert spec.target_dir is not None
    scheme = None if spec.quantize is None else SCHEMES[spec.quantize]
    checkpoint = Checkpoint(spec.target_dir, scheme)
    return checkpoints.target.load(checkpoint, dtype, caches)


def _load_images(
    checkpoints: ResolvedCheckpoints, target: TapTarget, dtype: torch.dtype
) -> ImageSupport:
    spec = checkpoints.spec
    if spec.is_dummy:
        stored = None if spec.target_dir is None else read_config(spec.target_dir)
        return dummy_images(target_name(spec), target, dtype, stored)
    assert spec.target_dir is not None
    images = load_images(Checkpoint(spec.target_dir), target, dtype)
    config = images.encoder.config
    checkpoints.provenance.check_processor(config.patch_size, config.pooling_kernel_size)
    return images


def _load_draft(
    checkpoints: ResolvedCheckpoints, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> tuple[DraftModel, Facts]:
    spec = checkpoints.spec
    if spec.draft_dir is None:
        make = KINDS[spec.drafter].without_checkpoint
        return make(checkpoints.target, target, dtype, caches)
    files = Checkpoint(spec.draft_dir)
    kind = kind_of_checkpoint(files) if spec.drafter == AUTO else HEADS[spec.drafter]
    return kind.load(files, target, dtype, caches, spec.tap_layers)


def linear_formats(pair: Pair) -> Formats:
    """Return how many linears of each name have which format; those of all experts of a layer are
    one.

    Layer numbers in names are `*`; formats are dense, int4-g32, int8-g32 and the like, and those of
    `--cpu-weights`: int8-rows, int4-g32-symmetric.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, module in pair.named_modules(remove_duplicate=False):
        if isinstance(module, LinearKind):
            whole = name.removesuffix(".linear")  # the part of a linear with a separate bias
            counts[re.sub(r"\.\d+(?=\.|$)", ".*", whole)][format_of(module)] += 1
    return {name: dict(formats) for name, formats in counts.items()}


def format_of(linear: LinearKind) -> str:
    """Return the name of the format of a linear's weight."""
    if isinstance(linear, nn.Linear | ExpertLinears):
        return DENSE
    if isinstance(linear, DynamicLinear | QuantizedExpertLinears):
        return INT8_ROWS if linear.bits == 8 else f"int4-g{linear.group_size}-symmetric"
    return f"int{4 * linear.digits}-g{linear.group_size}"
