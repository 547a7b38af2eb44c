"""Refuse heads that look like EAGLE-3 heads but are of another kind, by their names."""

import re
from collections.abc import Collection

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export.drafters.eagle3.reading.names import MASK_HIDDEN, OWN_IDS, count_layers
from eagle_aot.export.drafters.files import architectures, refuse_quantised
from eagle_aot.targets.config_section import ConfigSection

P_EAGLE = "a P-EAGLE head, which drafts in parallel"
SPECULATORS = {
    "peagle": P_EAGLE,
    "dflash": "a DFlash head, which denoises a block at once",
    "dspark": "a DSpark head, which denoises a block at once",
    "mtp": "an MTP head, the target's own next-token layers",
    "eagle": "an EAGLE-1 or EAGLE-2 head, without taps",
    "hass": "a HASS head, without taps",
    "medusa": "a set of Medusa heads",
    "mlp": "an MLP speculator",
    "independent": "a draft model of its own",
}
"""`speculators_model_type` of other algorithms."""

MLA = "a head with MLA attention"
ARCHITECTURES = (
    (re.compile("dflash", re.IGNORECASE), SPECULATORS["dflash"]),
    (re.compile("dspark", re.IGNORECASE), SPECULATORS["dspark"]),
    (re.compile("PEagle"), P_EAGLE),
    (re.compile("^Pard"), "a PARD model, a draft model of its own that drafts in parallel"),
    (re.compile("medusa", re.IGNORECASE), SPECULATORS["medusa"]),
    (re.compile("mtp|nextn", re.IGNORECASE), SPECULATORS["mtp"]),
    (re.compile("Eagle3Deepseek"), MLA),
    (re.compile("^eagle(?!3)|eagle$", re.IGNORECASE), SPECULATORS["eagle"]),
)
"""Class names; only those of EAGLE-3 have a 3 after Eagle."""

TENSORS = (
    (re.compile(rf"^{MASK_HIDDEN}$"), P_EAGLE),
    (re.compile(r"\.kv_[ab]_proj"), MLA),
    (re.compile(r"(^|\.)mtp\.|(^|\.)eh_proj\."), SPECULATORS["mtp"]),
    (re.compile(r"medusa"), SPECULATORS["medusa"]),
    (re.compile(r"^pre_projection\."), "an assistant of Gemma 4"),
)


def refuse_other_configs(config: ConfigSection, parallel: bool) -> None:
    """Raise UnsupportedError for a config.json of another algorithm, or with other math.

    P-EAGLE is another algorithm unless `parallel`.
    """
    kind = config.text("speculators_model_type", "eagle3")
    if kind != "eagle3" and not (parallel and kind == "peagle"):
        raise _other(config, SPECULATORS.get(kind, f"a {kind!r} speculator"))
    for architecture in architectures(config):
        for pattern, name in ARCHITECTURES:
            if pattern.search(architecture) and not (parallel and name == P_EAGLE):
                raise _other(config, name)
    if config.has("dflash_config"):
        raise _other(config, SPECULATORS["dflash"])
    if not parallel and any(config.has(key) for key in OWN_IDS):
        raise _other(config, P_EAGLE)
    refuse_quantised(config)
    refuse_engine_options(config)


def refuse_engine_options(config: ConfigSection) -> None:
    """Raise UnsupportedError for options of `eagle_config` that change the math.

    Names and meanings as in TensorRT-LLM's `modeling_speculative.py` and ModelOpt's exporter.
    """
    nested = config.section("eagle_config")
    if not nested.flag("use_aux_hidden_state", True):
        raise _other(config, "a head that reads the target's last hidden state, without taps")
    for key in ("eh_proj_before_attn", "use_mtp_layernorm"):
        if nested.flag(key):
            raise UnsupportedError(f"{config.where}: eagle_config.{key} is not supported")
    for key in ("next_layer_regular", "use_input_layernorm_in_first_layer"):
        if not nested.flag(key, True):
            raise UnsupportedError(f"{config.where}: eagle_config.{key} false is not supported")
    if nested.values.get("parallel_draft_step", 1) not in (None, 0, 1):
        raise _other(config, "a head with layers of its own for drafts in parallel")


def refuse_other_tensors(config: ConfigSection, names: Collection[str], parallel: bool) -> None:
    """Raise UnsupportedError if canonical tensor names are not those of an EAGLE-3 head."""
    for pattern, algorithm in TENSORS:
        if parallel and algorithm == P_EAGLE:
            continue
        if any(pattern.search(name) for name in names):
            raise _other(config, algorithm)
    fused = "layers.0.hidden_norm.weight" in names
    if "fc.weight" in names and not fused and count_layers(names):
        raise _other(config, SPECULATORS["eagle"] + " (no hidden_norm.weight)")
    if "fc.weight" not in names or not fused:
        raise _other(config, "no fc.weight with a hidden_norm.weight")


def _other(config: ConfigSection, kind: str) -> UnsupportedError:
    return UnsupportedError(f"{config.where.parent}: {kind}: not an EAGLE-3 head")
