"""How a head was understood, and by what: for `eagle-inspect draft`, and for manifests."""

from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from eagle_aot.export.drafters.draft_vocabulary import read_target_ids
from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.load import TABLES, check_shapes
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.parallel import new_draft
from eagle_aot.export.drafters.eagle3.reading.geometry import read_geometry, tap_layers
from eagle_aot.export.drafters.eagle3.reading.layout import HeadLayout, read_layout
from eagle_aot.export.drafters.eagle3.reading.taps import TapChoice
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.head_rope import describe_rope
from eagle_aot.export.drafters.protocol import Facts
from eagle_aot.export.drafters.report_lines import line, plain
from eagle_aot.export.drafters.target_facts import TargetFacts
from eagle_aot.targets.decoder.kv_cache import CacheSpec

SIZES = (
    "hidden_size",
    "target_hidden_size",
    "num_taps",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "rms_norm_eps",
    "hidden_act",
)
MASKED = ("mask_token_id",)


def describe_draft(
    checkpoint: HeadCheckpoint,
    target: TargetFacts | None,
    override: Sequence[int] | None = None,
    parallel: bool = False,
) -> Facts:
    """A head as one JSON object; `target` and `override` (tap layers) where they are known,
    `parallel` as for `read_layout`.

    Reads the maps and, beside a target, the tables; of other tensors only names and shapes. Raises
    what loading the head would raise for those.
    """
    num_layers = None if target is None else target.num_layers
    head = read_layout(checkpoint, num_layers, override, parallel)
    if target is not None:
        plain_config = read_geometry(head, None)
        target.check_made_for(plain_config.target_hidden_size, plain_config.vocab_size)
    config = read_geometry(head, num_layers)
    with torch.device("meta"):
        check_shapes(new_draft(config, torch.float32, CacheSpec(1, torch.float32)), head)
    return {
        "directory": str(checkpoint.directory),
        "layout": {"value": head.trainer, "source": head.recognised_by},
        "files": [path.name for path in head.checkpoint.files()],
        "sizes": {name: getattr(config, name) for name in SIZES + (MASKED if parallel else ())},
        "taps": _taps(tap_layers(head, config.num_taps, num_layers)),
        "options": {name: asdict(found) for name, found in sorted(head.flags.items())},
        "rope": describe_rope(config.rope, head.layer),
        "vocabulary": _vocabulary(config, head),
        "tables": {name: _table(head, name, target) for name in TABLES},
        "chain_len": config.default_chain_len,
    }


def decisions(config: DraftConfig, head: HeadLayout, num_layers: int) -> Facts:
    """How a head was read for a target of so many layers, as manifests tell it."""
    taps = tap_layers(head, config.num_taps, num_layers)
    return {
        "taps": {"value": list(taps.boundaries), "source": taps.reason},
        "layout": {"value": head.trainer, "source": head.recognised_by},
        "flags": {name: asdict(found) for name, found in sorted(head.flags.items())},
        "head": {n: value for n, value in sizes(config).items() if n not in head.flags},
    }


def of_dummy(draft: Eagle3Draft) -> Facts:
    """The same of a random head."""
    taps = {"value": list(draft.tap_layers), "source": "a dummy taps where public heads do"}
    return {"taps": taps, "layout": None, "flags": {}, "head": sizes(draft.config)}


def sizes(config: DraftConfig) -> Facts:
    """All of a config but its taps."""
    return {name: value for name, value in asdict(config).items() if name != "tap_layers"}


def _taps(choice: TapChoice) -> Facts:
    if choice.boundaries:
        return {"value": list(choice.boundaries), "source": choice.reason}
    ways = "--target-dir or --target-model gives the defaults of its depth"
    return {"value": None, "source": f"{choice.reason}; {ways}"}


def _vocabulary(config: DraftConfig, head: HeadLayout) -> Facts:
    ids = read_target_ids(config, head)
    ascending = bool((ids.diff() > 0).all())
    found = f"d2t, {'ascending' if ascending else 'unsorted'}" if "d2t" in head.names else "no d2t"
    return {
        "target": config.vocab_size,
        "draft": config.draft_vocab_size,
        "source": found + (", t2d agrees" if "t2d" in head.names else ""),
    }


def _table(head: HeadLayout, name: str, target: TargetFacts | None) -> str:
    """Whose table it is, and whether it needs room of its own."""
    if name not in head.names:
        return "the target's"
    table = None if target is None else target.table(name)
    if table is None:
        return "its own"
    own = head.checkpoint.tensor(head.stored(name))
    return "its own, equal to the target's: stored once" if _equal(own, table) else "its own"


def _equal(own: Tensor, table: Tensor) -> bool:
    """As exported in bfloat16."""
    return own.shape == table.shape and torch.equal(own.bfloat16(), table.bfloat16())


def report(description: Facts) -> list[str]:
    """The same as lines for a reader."""
    lines = [line("layout", description["layout"])]
    lines.append(line("files", ", ".join(description["files"])))
    for topic in ("sizes", "rope", "vocabulary"):
        facts = dict(description[topic])
        source = f" ({facts.pop('source')})" if "source" in facts else ""
        lines.append(line(topic, ", ".join(f"{k} {plain(v)}" for k, v in facts.items()) + source))
    lines.append(line("taps", description["taps"]))
    lines += [line(name, found) for name, found in description["options"].items()]
    lines += [line(name, whose) for name, whose in description["tables"].items()]
    return [*lines, line("chain_len", description["chain_len"])]
