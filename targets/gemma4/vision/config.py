"""The geometry of a Gemma 4 vision tower and the token ids of images, from config.json."""

from dataclasses import asdict, dataclass
from typing import Any

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import MAX_LAYERS, ConfigSection

SECTION = "vision_config"
ROPE_TYPES = ("axial", "default")
"""Two names of one type: published files and transformers do not agree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionConfig:
    """The geometry of the tower; names and defaults are those of transformers.

    A patch is `patch_size` pixels square, and `pooling_kernel_size` squared patches make one soft
    token.
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
        """Return the number of patches of an image of at most `soft_tokens` soft tokens."""
        return soft_tokens * self.pooling_kernel_size**2

    @property
    def patch_values(self) -> int:
        """Values per patch: three colours of every pixel."""
        return 3 * self.patch_size**2

    def operations(self, soft_tokens: int) -> float:
        """Return the multiplications and additions for an image of `soft_tokens` soft tokens.

        They are those of the linears and of attention among all patches, padding included.
        """
        patches, heads = self.patches(soft_tokens), self.num_attention_heads * self.head_dim
        linears = 4 * self.hidden_size * heads + 3 * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * (2.0 * patches * linears + 4.0 * patches**2 * heads)

    def to_transformers(self) -> Any:
        """Return transformers' config."""
        from transformers import Gemma4VisionConfig  # slow to import

        values = asdict(self)
        rope = {"rope_type": ROPE_TYPES[0], "rope_theta": values.pop("rope_theta")}
        heads = {"num_key_value_heads": self.num_attention_heads}
        return Gemma4VisionConfig(**values, **heads, rope_parameters=rope)

    @classmethod
    def from_hf(cls, config: ConfigSection) -> "VisionConfig":
        """Read the `vision_config` of a config.json.

        Raises UnsupportedError if there is none or if it needs other math, CheckpointError for a
        missing or odd value.
        """
        vision = config.section(SECTION)
        _refuse_other_math(config, vision)
        heads = vision.count("num_attention_heads")
        head_dim = vision.count("head_dim", vision.count("hidden_size") // heads)
        if head_dim % 4:
            raise CheckpointError(
                f"{config.where}: {SECTION}.head_dim {head_dim} is not a multiple of 4"
            )
        return cls(
            hidden_size=vision.count("hidden_size"),
            intermediate_size=vision.count("intermediate_size"),
            num_hidden_layers=vision.count("num_hidden_layers", most=MAX_LAYERS),
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
class ImageTokens:
    """Token ids: `image` stands for one soft token, `begin` and `end` enclose those of an image.

    Ids in `never` are never generated, because in a prompt they stand for something else.
    """

    image: int
    begin: int
    end: int
    never: tuple[int, ...]

    @classmethod
    def from_hf(cls, config: ConfigSection, vocab_size: int) -> "ImageTokens":
        """Read a config.json. Raises CheckpointError for a missing or unknown id."""
        keys = "image_token_id", "boi_token_id", "eoi_token_id"
        image, begin, end = (_token(config, key, vocab_size) for key in keys)
        others = [key for key in ("video_token_id", "audio_token_id") if config.has(key)]
        never = image, *(_token(config, key, vocab_size) for key in others)
        if len({image, begin, end}) < len(keys):
            raise CheckpointError(f"{config.where}: {', '.join(keys)} are not three ids")
        return cls(image=image, begin=begin, end=end, never=tuple(sorted(set(never))))


def has_bidirectional_images(config: ConfigSection) -> bool:
    """Whether the rows of an image see each other in both directions in sliding layers."""
    return config.section("text_config").values.get("use_bidirectional_attention") == "vision"


def _refuse_other_math(config: ConfigSection, vision: ConfigSection) -> None:
    path = config.where
    if config.text("model_type", "").startswith("gemma4_unified"):
        raise UnsupportedError(
            f"{path}: --inputs text,image: images without a tower (gemma4_unified) are not read"
        )
    if not vision.values:
        raise UnsupportedError(f"{path}: --inputs text,image: there is no {SECTION}")
    heads = vision.count("num_attention_heads")
    if vision.count("num_key_value_heads", heads) != heads:
        raise UnsupportedError(f"{path}: {SECTION} with fewer key heads than query heads")
    if vision.flag("attention_bias"):
        raise UnsupportedError(f"{path}: {SECTION} with attention biases")
    activation = vision.text("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise UnsupportedError(f"{path}: {SECTION} with activation {activation!r}")


def _rope_theta(vision: ConfigSection) -> float:
    rope = vision.section("rope_parameters")
    if (kind := rope.text("rope_type", ROPE_TYPES[0])) not in ROPE_TYPES:
        raise UnsupportedError(f"{vision.where}: {SECTION} with rope_type {kind!r}")
    return rope.number("rope_theta", 100.0)


def _token(config: ConfigSection, key: str, vocab_size: int) -> int:
    token = config.count(key)
    if token >= vocab_size:
        raise CheckpointError(f"{config.where}: {key} {token} is outside the vocabulary")
    return token


GEMMA4_VISION = VisionConfig(
    hidden_size=1152,
    intermediate_size=4304,
    num_hidden_layers=27,
    num_attention_heads=16,
    head_dim=72,
    standardize=True,
)
"""The tower of google/gemma-4-31B-it, for dummy weights."""

GEMMA4_IMAGE_TOKENS = ImageTokens(
    image=258880, begin=255999, end=258882, never=(258880, 258881, 258884)
)
"""The token ids of google/gemma-4-31B-it, for dummy weights."""
