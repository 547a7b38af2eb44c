"""How an assistant was understood, and by what: for `eagle-inspect draft`, and for manifests."""

from dataclasses import asdict

import torch

from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.gemma4_assistant.config import AssistantConfig
from eagle_aot.export.drafters.gemma4_assistant.load import check_tensors
from eagle_aot.export.drafters.gemma4_assistant.model import Gemma4Assistant
from eagle_aot.export.drafters.gemma4_assistant.reading import AssistantFiles, read_files
from eagle_aot.export.drafters.protocol import Facts
from eagle_aot.export.drafters.report_lines import line, plain
from eagle_aot.export.drafters.target_facts import TargetFacts
from eagle_aot.targets.decoder.kv_cache import CacheSpec

NAME = "Gemma 4 assistant"
STATE = {
    "value": "after the target's final norm",
    "source": "what transformers feeds it: what the target's lm_head reads",
}


def describe_assistant(checkpoint: HeadCheckpoint, target: TargetFacts | None) -> Facts:
    """An assistant as one JSON object. Of tensors only names and shapes are read, and two tables
    that should be one. Raises what loading would raise for those."""
    files = read_files(checkpoint)
    config = files.config
    if target is not None:
        target.check_made_for(config.backbone_hidden_size, config.text.vocab_size)
    with torch.device("meta"):
        check_tensors(Gemma4Assistant(config, 1, torch.float32, CacheSpec(1, torch.float32)), files)
    return {
        "directory": str(files.directory),
        "layout": {"value": NAME, "source": files.recognised_by},
        "files": [path.name for path in checkpoint.files()],
        "sizes": sizes(config),
        "state": STATE,
        **wiring(files),
        "head": head(config),
        "softcap": softcap(config),
        "chain_len": config.default_chain_len,
    }


def wiring(files: AssistantFiles) -> Facts:
    """Where implementations disagree, and what decided."""
    values = asdict(files.config.wiring)
    last = "the last of each kind"
    return {
        name: {"value": last if values[name] is None else values[name], "source": source}
        for name, source in files.sources.items()
    }


def sizes(config: AssistantConfig) -> Facts:
    """Counts of elements."""
    text = config.text
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "num_global_key_value_heads", "global_head_dim",
        "sliding_window", "vocab_size", "rms_norm_eps",
    )  # fmt: skip
    found: Facts = {name: getattr(text, name) for name in names}
    return {"target_hidden_size": config.backbone_hidden_size, **found}


def head(config: AssistantConfig) -> str:
    """How the vocabulary is scored."""
    if config.centroids is None:
        return "dense"
    count, top_k = config.centroids
    return f"the {top_k} likeliest of {count} clusters"


def softcap(config: AssistantConfig) -> str:
    """What becomes of a cap on logits, which only sampling could feel."""
    return "none" if config.text.final_logit_softcapping is None else "stated, and not applied"


def decisions(files: AssistantFiles, draft: Gemma4Assistant) -> Facts:
    """How an assistant was read, as manifests tell it."""
    return {
        "taps": {"value": list(draft.tap_layers), "source": STATE["value"]},
        "layout": {"value": NAME, "source": files.recognised_by},
        "flags": wiring(files),
        "head": {**sizes(files.config), "scores": head(files.config)},
    }


def report(description: Facts) -> list[str]:
    """A description as lines for a reader."""
    facts = dict(description)
    facts["files"] = ", ".join(facts["files"])
    facts["sizes"] = ", ".join(f"{name} {plain(v)}" for name, v in facts["sizes"].items())
    return [line(topic, fact) for topic, fact in facts.items() if topic != "directory"]
