"""What an export decided, and by what: for its manifest."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from eagle_aot.export.drafters.eagle3.reading.files import HeadCheckpoint
from eagle_aot.export.drafters.eagle3.reading.geometry import tap_layers
from eagle_aot.export.drafters.eagle3.reading.layout import read_layout
from eagle_aot.export.load import DUMMY, Source
from eagle_aot.export.lowering.backend import DTYPES
from eagle_aot.export.options import ExportOptions
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.attention import SPLITK, STOCK, methods_splitting_keys
from eagle_aot.export.publish.kernel_choices import kernel_choices
from eagle_aot.targets.int4 import Int4Linear

DENSE = "dense"
Formats = dict[str, dict[str, int]]


def linear_formats(pair: Pair) -> Formats:
    """How many linears of each name are held in which format, before they are folded or packed.

    Layer numbers in names are `*`; formats are dense, int4-g32, int8-g32 and the like.
    """
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, module in pair.named_modules():
        if isinstance(module, nn.Linear | Int4Linear):
            whole = name.removesuffix(".linear")  # of a linear with a bias beside it
            found[re.sub(r"\.\d+(?=\.|$)", ".*", whole)][format_of(module)] += 1
    return {name: dict(formats) for name, formats in found.items()}


def format_of(linear: nn.Linear | Int4Linear) -> str:
    """How a linear holds its weight."""
    if isinstance(linear, nn.Linear):
        return DENSE
    return f"int{4 * linear.digits}-g{linear.group_size}"


def describe_decisions(
    pair: Pair,
    source: Source,
    options: ExportOptions,
    linears: Formats,
    programs: Mapping[str, ExportedProgram],
) -> dict[str, Any]:
    """Every decision of an export as JSON; `programs` are its methods before lowering.

    `options` name a backend and an attention.
    """
    assert options.attention is not None
    splitting = methods_splitting_keys(options.attention, pair)
    return {
        "dtype": str(DTYPES[options.backend]).removeprefix("torch."),
        **head_decisions(pair, source),
        "linears": linears,
        "attention": {name: SPLITK if name in splitting else STOCK for name in programs},
        "kernels": {name: kernel_choices(program) for name, program in programs.items()},
    }


def head_decisions(pair: Pair, source: Source) -> dict[str, Any]:
    """How the head was read: its layout, its taps and its options, each with what decided it."""
    config, num_layers = pair.draft.config, pair.target.num_hidden_layers
    taps = {"value": list(config.tap_layers), "source": "a dummy taps where public heads do"}
    sizes = {name: value for name, value in asdict(config).items() if name != "tap_layers"}
    if source.load_format == DUMMY or source.draft_dir is None:
        return {"taps": taps, "layout": None, "flags": {}, "head": sizes}
    head = read_layout(HeadCheckpoint(source.draft_dir), num_layers, source.tap_layers)
    taps["source"] = tap_layers(head, config.num_taps, num_layers).reason
    return {
        "taps": taps,
        "layout": {"value": head.trainer, "source": head.recognised_by},
        "flags": {name: asdict(found) for name, found in sorted(head.flags.items())},
        "head": {name: value for name, value in sizes.items() if name not in head.flags},
    }
