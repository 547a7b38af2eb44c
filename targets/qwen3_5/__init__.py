"""Dense Qwen3.5, 3.6 and 3.8 text decoders: gated delta nets, every fourth layer attends."""

from eagle_aot.targets.family import Family, Published
from eagle_aot.targets.qwen3_5.config import MODEL_TYPES, published_config, read_qwen3_5
from eagle_aot.targets.qwen3_5.model import HybridDecoder, load_qwen3_5

__all__ = ["QWEN3_5"]

LARGEST = published_config(hidden=5120, inner=17408, layers=64, heads=24, states=48)

QWEN3_5 = Family(
    model_types=MODEL_TYPES,
    load=load_qwen3_5,
    read_config=read_qwen3_5,
    decoder=HybridDecoder,
    has_mtp=True,
    published=(
        Published(
            "qwen3.5-4b",
            "Qwen/Qwen3.5-4B",
            published_config(hidden=2560, inner=9216, layers=32, heads=16, states=32, tied=True),
        ),
        Published(
            "qwen3.5-9b",
            "Qwen/Qwen3.5-9B",
            published_config(hidden=4096, inner=12288, layers=32, heads=16, states=32),
        ),
        *(
            Published(f"qwen{version}-27b", f"Qwen/Qwen{version}-27B", LARGEST)
            for version in ("3.5", "3.6", "3.8")
        ),
    ),
)
