"""What an assistant is made of."""

from dataclasses import dataclass

from eagle_aot.targets.gemma4.config import Gemma4Config


@dataclass(frozen=True, kw_only=True, slots=True)
class AssistantWiring:
    """How an assistant reads its target where implementations disagree, or its files say nothing.

    Queries are turned `position_offset` behind the position of the newest key: 1 is where the bonus
    token stands, as transformers and mlx-vlm have it, 0 as vLLM. Sliding layers see the last
    `sliding_window + window_offset` keys: 1 as transformers, 0 as vLLM, -1 as mlx-vlm. `kv_layers`
    are the target's layers whose keys and values are read, for each kind of layer one; None are the
    last of each kind.
    """

    position_offset: int = 1
    window_offset: int = 1
    kv_layers: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AssistantConfig:
    """Geometry and options of an assistant, all read from its checkpoint.

    `backbone_hidden_size` is the target's width, `text` are the assistant's own layers. `centroids`
    is None for a head that scores the whole vocabulary, else how many clusters it is cut into and
    how many of them are scored.
    """

    backbone_hidden_size: int
    text: Gemma4Config
    centroids: tuple[int, int] | None = None
    wiring: AssistantWiring = AssistantWiring()
    default_chain_len: int | None = None
