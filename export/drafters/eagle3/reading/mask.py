"""What a head that drafts in parallel is handed where neither token nor feature is known yet.

Names as in vLLM's `llm_base_proposer.py` and `llama_eagle3.py`.
"""

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.config_section import ConfigSection

MASK_HIDDEN = "mask_hidden"
"""The tensor: taps of a place that the target has not seen, one row of them."""

OWN_IDS = ("pard_token", "ptd_token_id")
MASK_IDS = (*OWN_IDS, "mask_token_id")
"""Keys of the token, whatever the trainer; only the first two say that a head has one."""


def read_mask_token(config: ConfigSection, vocab_size: int) -> int:
    """The id that stands for a token that is not known. Raises CheckpointError unless config.json
    names one of the vocabulary."""
    stated = {key: config.values[key] for key in MASK_IDS if config.has(key)}
    for key, token in stated.items():
        if type(token) is not int or not 0 <= token < vocab_size:
            raise CheckpointError(
                f"{config.where}: {key} is {token!r}, expected one of {vocab_size} token ids"
            )
    if len(set(stated.values())) != 1:
        found = ", ".join(f"{key} {token}" for key, token in stated.items()) or "none"
        raise CheckpointError(
            f"{config.where}: a P-EAGLE head names one mask token "
            f"({' or '.join(MASK_IDS)}): {found}"
        )
    return int(next(iter(stated.values())))
