"""What an engine takes of a machine."""

import torch

from eagle_aot.artifact import Manifest


def gpus_of(manifest: Manifest) -> float:
    """As Ray counts them: one for an artifact of a GPU, where there are any."""
    return float(manifest.backend == "cuda" and torch.cuda.is_available())
