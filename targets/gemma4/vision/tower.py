"""A picture's soft tokens: transformers' own tower and projector, traced as they are.

The library's model leaves out rows without patches by a mask, which makes their number a value.
Here all rows of the budget are kept, in the order of the grid, those of the picture first.
"""

from typing import Any

import torch
from torch import Tensor, nn

from eagle_aot.targets.gemma4.vision.attention import Patches, registered
from eagle_aot.targets.gemma4.vision.config import VisionConfig

META = torch.device("meta")


class VisionTower(nn.Module):
    """Patches to states, by the parts of transformers' `Gemma4VisionModel`."""

    std_bias: Tensor
    std_scale: Tensor

    def __init__(self, config: VisionConfig, library: Any) -> None:
        """`library` is transformers' config. Tensors that a checkpoint has are on meta."""
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

    def forward(self, pixel_values: Tensor, position_ids: Tensor, streams_keys: bool) -> Tensor:
        """As `Gemma4Vision` takes them -> [1, S, hidden_size]."""
        registered()  # a process that was handed the tower has not made it
        padding = (position_ids == -1).all(dim=-1)
        states = self.patch_embedder(pixel_values, position_ids, padding)
        patches = Patches(~padding[0], streams_keys)
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
    """As transformers' `Gemma4VisionRotaryEmbedding`, in operators that every backend has: some
    versions multiply matrices of four dimensions there."""

    inv_freq: Tensor

    def __init__(self, inv_freq: Tensor) -> None:
        """`inv_freq` float32 [D / 4], the frequencies of half of a head's pairs."""
        super().__init__()
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """position_ids int64 [1, N, 2] -> cosines and sines [1, N, D]: of x in the first half of a
        head, of y in the second."""
        angles = position_ids.unsqueeze(-1).float() * self.inv_freq
        x, y = angles[:, :, 0], angles[:, :, 1]
        angles = torch.cat((x, x, y, y), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class Gemma4Vision(nn.Module):
    """Tower and projector, named as a checkpoint names them."""

    def __init__(self, config: VisionConfig, text_width: int) -> None:
        """For embeddings of `text_width`."""
        from transformers import Gemma4TextConfig  # slow to import
        from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder

        super().__init__()
        self.config, self.text_width = config, text_width
        library = config.library()
        library._attn_implementation = registered()
        self.vision_tower = VisionTower(config, library)
        with META:
            text = Gemma4TextConfig(hidden_size=text_width)
            self.embed_vision = Gemma4MultimodalEmbedder(library, text)

    def forward(
        self, pixel_values: Tensor, position_ids: Tensor, streams_keys: bool = False
    ) -> Tensor:
        """One picture as transformers' processor gives it: pixel_values float32 [1, N, 3 * P * P]
        between 0 and 1, position_ids int64 [1, N, 2] of patches, -1 for those behind the last.

        Returns [1, S, text_width], rows of the prompt in place of the scaled table's, of which the
        first are the picture's and the others mean nothing; S is the most that N patches give.
        """
        states = self.vision_tower(pixel_values, position_ids, streams_keys)
        return self.embed_vision(states)
