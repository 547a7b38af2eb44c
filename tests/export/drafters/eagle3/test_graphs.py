"""Heads beyond the plain one keep the contract of the exported graphs."""

from pathlib import Path
from typing import Any

import pytest

from eagle_aot.artifact import DRAFT_DECODE
from eagle_aot.export import ExportSpec, run_check
from eagle_aot.export.graph_checks import mutated_buffers
from support.gemma_oracle import random_gemma, save_text_layout
from support.heads.files import HeadShape, head_tensors, safeailab_config, write_head

DYNAMIC = {"rope_type": "dynamic", "factor": 3.0}
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("shape", "rope"),
    [(HeadShape(num_layers=2, qk_norm=True, biases=True), DYNAMIC), (HeadShape(), YARN)],
    ids=["two layers, dynamic", "yarn"],
)
def test_a_head_of_several_layers_with_scaled_rope_keeps_the_contract(
    tmp_path: Path, shape: HeadShape, rope: dict[str, Any]
) -> None:
    target = save_text_layout(random_gemma(), tmp_path / "target")
    config = safeailab_config(shape, rope_parameters=rope, max_position_embeddings=32)
    head = write_head(tmp_path / "head", head_tensors(shape), config)
    caches = {"draft.kv_cache.k", "draft.kv_cache.v"}
    caches |= {f"draft.layers.{i}.kv_cache.{n}" for i in range(1, shape.num_layers) for n in "kv"}
    assert (
        mutated_buffers(
            run_check(
                ExportSpec(
                    target_model="gemma4-31b",
                    target_dir=target,
                    draft_dir=head,
                    tap_layers=(1, 2, 3),
                    backend="xnnpack",
                    max_seq_len=128,
                    max_prefill=72,
                )
            )[DRAFT_DECODE]
        )
        == caches
    )
