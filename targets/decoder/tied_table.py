"""An output table that is the embedding."""

import torch

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.checkpoint import Checkpoint

LM_HEAD = "lm_head.weight"


def stored_again(checkpoint: Checkpoint, prefix: str) -> tuple[str, ...]:
    """Names that a checkpoint with tied tables holds and a decoder does not need.

    Quantised releases store the table a second time. Raises CheckpointError where it is another.
    """
    if LM_HEAD not in checkpoint:
        return ()
    table = checkpoint.tensor(f"{prefix}embed_tokens.weight")
    if not torch.equal(table, checkpoint.tensor(LM_HEAD)):
        raise CheckpointError(
            f"{checkpoint.directory}: config.json ties the embeddings, "
            "but lm_head.weight differs from embed_tokens.weight"
        )
    return (LM_HEAD,)
