"""Geometry of a Gemma 4 vision tower and the ids around pictures, read from config.json."""

from dataclasses import asdict, dataclass
from typing import Any

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import MOST_LAYERS, ConfigSection

SECTION = "vision_config"
ROPE_TYPES = ("axial", "default")
"""One kind by two names: published files and transformers' own do not agree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionConfig:
    """What the tower's math depends on; names and defaults are transformers'.

    A patch is `patch_size` pixels square, `pooling_kernel_size` squared patches are one soft token.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    patch_size: int = 16
    pooling_kernel_size: int = 3
    position_embedding_size: int = 10240
    rms_norm_eps: float = 1e-6
    rope_theta: float = 100.0
    standardize: bool = False
    use_clipped_linears: bool = False

    def patches(self, soft_tokens: int) -> int:
        """How many a picture of at most so many soft tokens has."""
        return soft_tokens * self.pooling_kernel_size**2

    @property
    def patch_values(self) -> int:
        """Numbers of a patch."""
        return 3 * self.patch_size**2

    def operations(self, soft_tokens: int) -> float:
        """Multiplications and additions for such a picture: of linears, and of attention among all
        patches; padding costs as much as pixels do."""
        patches, heads = self.patches(soft_tokens), self.num_attention_heads * self.head_dim
        linears = 4 * self.hidden_size * heads + 3 * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * (2.0 * patches * linears + 4.0 * patches**2 * heads)

    def library(self) -> Any:
        """transformers' own config."""
        from transformers import Gemma4VisionConfig  # slow to import

        values = asdict(self)
        rope = {"rope_type": ROPE_TYPES[0], "rope_theta": values.pop("rope_theta")}
        heads = {"num_key_value_heads": self.num_attention_heads}
        return Gemma4VisionConfig(**values, **heads, rope_parameters=rope)

    @classmethod
    def from_hf(cls, config: ConfigSection) -> "VisionConfig":
        """Of a config.json's `vision_config`.

        Raises UnsupportedError where there is none or it needs other math, CheckpointError for a
        missing or odd value.
        """
        vision = config.section(SECTION)
        _refuse_others(config, vision)
        heads = vision.count("num_attention_heads")
        head_dim = vision.count("head_dim", vision.count("hidden_size") // heads)
        if head_dim % 4:
            raise CheckpointError(f"{config.where}: {SECTION}.head_dim {head_dim} has no quarters")
        return cls(
            hidden_size=vision.count("hidden_size"),
            intermediate_size=vision.count("intermediate_size"),
            num_hidden_layers=vision.count("num_hidden_layers", most=MOST_LAYERS),
            num_attention_heads=heads,
            head_dim=head_dim,
            patch_size=vision.count("patch_size", 16, most=256),
            pooling_kernel_size=vision.count("pooling_kernel_size", 3, most=16),
            position_embedding_size=vision.count("position_embedding_size", 10240),
            rms_norm_eps=vision.number("rms_norm_eps", 1e-6),
            rope_theta=_rope_theta(vision),
            standardize=vision.flag("standardize"),
            use_clipped_linears=vision.flag("use_clipped_linears"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureTokens:
    """Ids of the vocabulary: `image` stands in a prompt for a soft token, `begin` and `end` around
    a picture's, and none of `never` is ever generated, since it would stand for something else."""

    image: int
    begin: int
    end: int
    never: tuple[int, ...]

    @classmethod
    def from_hf(cls, config: ConfigSection, vocab_size: int) -> "PictureTokens":
        """Of a config.json. Raises CheckpointError for a missing one or one outside of the
        vocabulary."""
        keys = "image_token_id", "boi_token_id", "eoi_token_id"
        image, begin, end = (_token(config, key, vocab_size) for key in keys)
        others = [key for key in ("video_token_id", "audio_token_id") if config.has(key)]
        never = image, *(_token(config, key, vocab_size) for key in others)
        if len({image, begin, end}) < len(keys):
            raise CheckpointError(f"{config.where}: {', '.join(keys)} are not three ids")
        return cls(image=image, begin=begin, end=end, never=tuple(sorted(set(never))))


def sees_pictures_whole(config: ConfigSection) -> bool:
    """Whether rows of a picture see one another both ways in sliding layers."""
    return config.section("text_config").values.get("use_bidirectional_attention") == "vision"


def _refuse_others(config: ConfigSection, vision: ConfigSection) -> None:
    where = config.where
    if config.text("model_type", "").startswith("gemma4_unified"):
        raise UnsupportedError(
            f"{where}: --inputs text,image: pictures without a tower (gemma4_unified) are not read"
        )
    if not vision.values:
        raise UnsupportedError(f"{where}: --inputs text,image: there is no {SECTION}")
    if vision.count("num_key_value_heads", vision.count("num_attention_heads")) != vision.count(
        "num_attention_heads"
    ):
        raise UnsupportedError(f"{where}: {SECTION} with fewer key heads than query heads")
    if vision.flag("attention_bias"):
        raise UnsupportedError(f"{where}: {SECTION} with attention biases")
    activation = vision.text("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise UnsupportedError(f"{where}: {SECTION} with activation {activation!r}")


def _rope_theta(vision: ConfigSection) -> float:
    rope = vision.section("rope_parameters")
    if (kind := rope.text("rope_type", ROPE_TYPES[0])) not in ROPE_TYPES:
        raise UnsupportedError(f"{vision.where}: {SECTION} with rope_type {kind!r}")
    return rope.number("rope_theta", 100.0)


def _token(config: ConfigSection, key: str, vocab_size: int) -> int:
    found = config.count(key)
    if found >= vocab_size:
        raise CheckpointError(f"{config.where}: {key} {found} is outside of the vocabulary")
    return found


GEMMA4_VISION = VisionConfig(
    hidden_size=1152,
    intermediate_size=4304,
    num_hidden_layers=27,
    num_attention_heads=16,
    head_dim=72,
    standardize=True,
)
"""The tower of google/gemma-4-31B-it, for dummy weights."""

GEMMA4_PICTURES = PictureTokens(
    image=258880, begin=255999, end=258882, never=(258880, 258881, 258884)
)
"""Of its vocabulary, likewise."""
