"""How a DFlash head was understood, and by what: for `eagle-inspect draft`, and for manifests."""

from collections.abc import Sequence
from dataclasses import asdict

import torch

from eagle_aot.export.drafters.dflash.config import DFlashConfig
from eagle_aot.export.drafters.dflash.load import TABLES, check_tensors
from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.export.drafters.dflash.reading import DFlashFiles, read_files
from eagle_aot.export.drafters.draft_vocabulary import read_target_ids
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.protocol import Facts
from eagle_aot.export.drafters.report_lines import line, plain
from eagle_aot.export.drafters.target_facts import TargetFacts
from eagle_aot.targets.decoder.kv_cache import CacheSpec


def describe_dflash(
    checkpoint: HeadCheckpoint, target: TargetFacts | None, tap_layers: Sequence[int] | None
) -> Facts:
    """A head as one JSON object. Of tensors only names, shapes and the maps are read. Raises what
    loading would raise for those."""
    files = read_files(checkpoint, tap_layers)
    config = files.config
    if target is not None:
        target.check_made_for(config.target_hidden_size, config.vocab_size)
    with torch.device("meta"):
        check_tensors(DFlashDraft(config, torch.float32, CacheSpec(1, torch.float32)), files)
    read_target_ids(config, files)
    return {
        "directory": str(files.directory),
        "layout": {"value": files.layout, "source": files.recognised_by},
        "files": [path.name for path in checkpoint.files()],
        "sizes": sizes(config),
        "taps": {"value": list(config.tap_layers), "source": files.tap_source},
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "sliding layers": "causal within a block" if config.causal_windows else "see both ways",
        "tables": {name: "its own" if name in files.names else "the target's" for name in TABLES},
        "chain_len": config.block_size - 1,
    }


def sizes(config: DFlashConfig) -> Facts:
    """Counts of elements, and what logits and embeddings are multiplied by."""
    found = asdict(config)
    layers = found.pop("layers")
    rope = layers.pop("rope")
    del layers["tie_word_embeddings"], layers["qk_norm"]
    layers["layer_types"] = list(layers["layer_types"])
    del found["tap_layers"]
    return {**layers, **found, "rope_theta": rope["theta"], "rope_type": rope["rope_type"]}


def decisions(files: DFlashFiles) -> Facts:
    """How a head was read, as manifests tell it."""
    return {
        "taps": {"value": list(files.config.tap_layers), "source": files.tap_source},
        "layout": {"value": files.layout, "source": files.recognised_by},
        "flags": {},
        "head": sizes(files.config),
    }


def report(description: Facts) -> list[str]:
    """A description as lines for a reader."""
    facts = {topic: fact for topic, fact in description.items() if topic != "directory"}
    facts["files"] = ", ".join(facts["files"])
    facts["sizes"] = ", ".join(f"{name} {plain(v)}" for name, v in facts["sizes"].items())
    tables = facts.pop("tables")
    return [line(topic, fact) for topic, fact in (facts | tables).items()]
