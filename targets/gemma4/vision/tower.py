"""The soft tokens of an image, by transformers' tower and projector, and their weights.

transformers drops rows without patches by a mask, which makes the number of rows depend on values.
Here all rows of the budget stay, in the order of the grid, those of the image first.
"""

from typing import Any

import torch
from torch import Tensor, nn

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.weights import assign, check_sizes, load_weights
from eagle_aot.targets.gemma4.vision.attention import PresentPatches, register_attention
from eagle_aot.targets.gemma4.vision.config import VisionConfig

META = torch.device("meta")
PREFIX = "model."
READ = (f"{PREFIX}vision_tower.", f"{PREFIX}embed_vision.")
UNUSED = f"{PREFIX}embed_vision.embedding."
"""A table that some files have and nothing reads."""


class VisionTower(nn.Module):
    """Turns patches into states, with the modules of transformers' `Gemma4VisionModel`."""

    std_bias: Tensor
    std_scale: Tensor

    def __init__(self, config: VisionConfig, library: Any) -> None:
        """`library` is transformers' config. Tensors that a checkpoint fills are on meta."""
        from transformers.models.gemma4 import modeling_gemma4 as gemma4  # slow to import

        super().__init__()
        self.config = config
        with META:
            self.patch_embedder = gemma4.Gemma4VisionPatchEmbedder(library)
            self.encoder = gemma4.Gemma4VisionEncoder(library)
            self.pooler = gemma4.Gemma4VisionPooler(library)
            if config.standardize:
                for name in ("std_bias", "std_scale"):
                    self.register_buffer(name, torch.empty(config.hidden_size))
        kind = gemma4.Gemma4VisionRotaryEmbedding
        self.encoder.rotary_emb = AxialRotary(kind.compute_axial_rope_parameters(library)[0])

    def forward(
        self, pixel_values: Tensor, position_ids: Tensor, use_prompt_kernel: bool
    ) -> Tensor:
        """Return the states [1, S, hidden_size] of patches as `Gemma4Vision.forward` takes them."""
        register_attention()  # another process may have made this tower
        padding = (position_ids == -1).all(dim=-1)
        states = self.patch_embedder(pixel_values, position_ids, padding)
        patches = PresentPatches(~padding[0], use_prompt_kernel)
        rotary = self.encoder.rotary_emb(position_ids, states.dtype)
        for layer in self.encoder.layers:
            states = layer(
                states,
                attention_mask=patches,
                position_embeddings=rotary,
                position_ids=position_ids,
            )
        length = pixel_values.shape[1] // self.config.pooling_kernel_size**2
        pooled, _ = self.pooler(states, position_ids, padding, length)
        if self.config.standardize:
            pooled = (pooled - self.std_bias.float()) * self.std_scale.float()
        return pooled.to(states.dtype)


class AxialRotary(nn.Module):
    """transformers' `Gemma4VisionRotaryEmbedding` in operators that every backend has.

    Some versions of transformers multiply four-dimensional matrices there.
    """

    inv_freq: Tensor

    def __init__(self, inv_freq: Tensor) -> None:
        """`inv_freq` float32 [D / 4] are the frequencies of half of a head's pairs."""
        super().__init__()
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [1, N, D] as `dtype` of position_ids int64 [1, N, 2].

        The first half of a head is rotated by x, the second by y.
        """
        angles = position_ids.unsqueeze(-1).float() * self.inv_freq
        x, y = angles[:, :, 0], angles[:, :, 1]
        angles = torch.cat((x, x, y, y), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class Gemma4Vision(nn.Module):
    """Tower and projector, with the module names of checkpoints."""

    def __init__(self, config: VisionConfig, text_width: int) -> None:
        """`text_width` is the hidden size of the text decoder."""
        from transformers import Gemma4TextConfig  # slow to import
        from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder

        super().__init__()
        self.config, self.text_width = config, text_width
        library = config.to_transformers()
        library._attn_implementation = register_attention()
        self.vision_tower = VisionTower(config, library)
        with META:
            text = Gemma4TextConfig(hidden_size=text_width)
            self.embed_vision = Gemma4MultimodalEmbedder(library, text)

    def forward(
        self, pixel_values: Tensor, position_ids: Tensor, use_prompt_kernel: bool = False
    ) -> Tensor:
        """Encode one image as transformers' processor returns it.

        pixel_values float32 [1, N, 3 * P * P] between 0 and 1; position_ids int64 [1, N, 2] of the
        patches, -1 for padding after the last one. Returns [1, S, text_width], prompt rows that
        replace scaled rows of the embedding table. S is the maximum that N patches give; the rows
        of the image come first and the others are undefined.
        """
        states = self.vision_tower(pixel_values, position_ids, use_prompt_kernel)
        return self.embed_vision(states)


def load_vision(checkpoint: Checkpoint, text_width: int, dtype: torch.dtype) -> Gemma4Vision:
    """Load tower and projector of `checkpoint` on the host, for a decoder of width `text_width`.

    Raises UnsupportedError for a tower that is not supported, CheckpointError for damage.
    """
    vision = Gemma4Vision(VisionConfig.from_hf(checkpoint.config), text_width)
    check_sizes(vision, checkpoint, PREFIX)
    others = (name for name in checkpoint.names() if not name.startswith(READ))
    load_weights(vision, checkpoint, PREFIX, (*others, UNUSED), dtype)
    return vision.eval()


def dummy_vision(config: VisionConfig, text_width: int, dtype: torch.dtype) -> Gemma4Vision:
    """Make a tower with random weights that keep every stage at about unit variance."""
    vision = Gemma4Vision(config, text_width)
    for name, like in vision.state_dict().items():
        scale = like.shape[-1] ** -0.5 if like.ndim > 1 else 0.1
        assign(vision, name, torch.randn(like.shape, dtype=dtype) * scale + (like.ndim == 1))
    return vision.eval()
