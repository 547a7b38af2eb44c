"""From a source to a pair on the host."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn

from eagle_aot.common.errors import ExportError
from eagle_aot.common.memory import shortage
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.protocol import Drafter, Facts
from eagle_aot.export.drafters.quant import quantise_draft
from eagle_aot.export.drafters.registry import HEADS, KINDS, kind_of_checkpoint
from eagle_aot.export.loading.source import AUTO, Source
from eagle_aot.export.loading.table_quant import quantise_table
from eagle_aot.export.lowering.backend import CUDA, DTYPES
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.quantized_modules import DynamicLinear
from eagle_aot.targets import TapTarget, get_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.images import ImageSupport, dummy_images, load_images
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.quantise import SCHEMES

DUMMY_SEED = 0  # the same command gives the same weights
DENSE, INT8_ROWS = "dense", "int8-rows"

Formats = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A pair as its checkpoints hold it, and what they say.

    `reading` is how the drafter's files were understood; `linears` how many linears of each name
    are held in which format. `source` knows all else, in its `provenance`.
    """

    pair: Pair
    source: Source
    reading: Facts
    linears: Formats


def load_pair(
    source: Source, dtype: torch.dtype, caches: CacheSpec, *, pictures: bool = False
) -> LoadedPair:
    """Load target and drafter on the host and check them against each other.

    Weights and activations have `dtype`; KV caches are made by `caches`, which has a dtype of its
    own. With `pictures` the target's image encoder is loaded, too.
    """
    load_target = _dummy_target if source.is_dummy else _target
    try:
        target = load_target(source, dtype, caches)
        draft, reading = _load_draft(source, target, dtype, caches)
        loaded_pictures = _load_pictures(source, target, dtype) if pictures else None
        draft_module = cast(nn.Module, draft)
        quantise_table(target, draft_module, source.table_quant)
        quantise_draft(draft_module, target, source.draft_quant)
    except (MemoryError, RuntimeError) as error:  # how torch says that memory is short
        reason = shortage(error) or next(iter(str(error).splitlines()), "no reason given")
        raise ExportError(f"loading failed: {reason}") from error
    pair = Pair(target, draft, loaded_pictures)
    return LoadedPair(pair, source, reading, linear_formats(pair))


def load_by_gpu(
    source: Source, dtype: torch.dtype, caches: CacheSpec, *, pictures: bool = False
) -> LoadedPair:
    """The same for an export, which hardly writes to caches: for a GPU they take no memory before.

    A GPU draws a dummy's numbers: a host takes minutes for 30 billion.
    """
    if dtype != DTYPES[CUDA]:
        return load_pair(source, dtype, caches, pictures=pictures)
    caches = replace(caches, on_host=True)
    if not source.is_dummy:
        return load_pair(source, dtype, caches, pictures=pictures)
    with torch.device(CUDA):
        loaded = load_pair(source, dtype, caches, pictures=pictures)
    loaded.pair.cpu()
    torch.cuda.empty_cache()  # compilers may take room in processes of their own
    return loaded


def _dummy_target(source: Source, dtype: torch.dtype, caches: CacheSpec) -> TapTarget:
    spec = get_target(source.target_model)
    assert spec.dummy is not None
    torch.manual_seed(DUMMY_SEED)
    return spec.dummy(dtype, caches, source.dummy_layers)


def _target(source: Source, dtype: torch.dtype, caches: CacheSpec) -> TapTarget:
    assert source.target_dir is not None
    scheme = None if source.quantize is None else SCHEMES[source.quantize]
    checkpoint = Checkpoint(source.target_dir, scheme)
    return get_target(source.target_model).load(checkpoint, dtype, caches)


def _load_pictures(source: Source, target: TapTarget, dtype: torch.dtype) -> ImageSupport:
    if source.is_dummy:
        return dummy_images(source.target_model, target, dtype)
    assert source.target_dir is not None
    pictures = load_images(Checkpoint(source.target_dir), target, dtype)
    sizes = pictures.encoder.config.patch_size, pictures.encoder.config.pooling_kernel_size
    source.provenance.check_processor(*sizes)
    return pictures


def _load_draft(
    source: Source, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> tuple[Drafter, Facts]:
    if source.draft_dir is None:
        spec = get_target(source.target_model)
        return KINDS[source.drafter].without_checkpoint(spec, target, dtype, caches)
    files = HeadCheckpoint(source.draft_dir)
    kind = kind_of_checkpoint(files) if source.drafter == AUTO else HEADS[source.drafter]
    return kind.load(files, target, dtype, caches, source.tap_layers)


def linear_formats(pair: Pair) -> Formats:
    """How many linears of each name are held in which format.

    Layer numbers in names are `*`; formats are dense, int4-g32, int8-g32 and the like, and those of
    `--cpu-weights`: int8-rows, int4-g32-symmetric.
    """
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, module in pair.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear | Int4Linear | DynamicLinear):
            whole = name.removesuffix(".linear")  # of a linear with a bias beside it
            found[re.sub(r"\.\d+(?=\.|$)", ".*", whole)][format_of(module)] += 1
    return {name: dict(formats) for name, formats in found.items()}


def format_of(linear: nn.Linear | Int4Linear | DynamicLinear) -> str:
    """How a linear holds its weight."""
    if isinstance(linear, nn.Linear):
        return DENSE
    if isinstance(linear, DynamicLinear):
        return INT8_ROWS if linear.bits == 8 else f"int4-g{linear.group_size}-symmetric"
    return f"int{4 * linear.digits}-g{linear.group_size}"
