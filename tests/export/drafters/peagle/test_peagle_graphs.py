"""A P-EAGLE head's methods keep the contract of the exported graphs."""

from eagle_aot.export import ExportSpec, run_check
from eagle_aot.export.graph_checks import mutated_buffers
from eagle_aot.export.graph_checks.nodes import calls, operator_name, used_weights


def test_on_a_gpu_it_reads_its_caches_and_in_few_bits_and_has_its_mask() -> None:
    programs = run_check(
        ExportSpec(
            target_model="gemma4-tiny",
            load_format="dummy",
            drafter="p-eagle",
            draft_quant="int4",
            max_seq_len=128,
            max_prefill=72,
            max_batch_size=2,
        )
    )
    assert set(programs) == {
        "prefill", "target_verify", "peagle_decode", "draft_prefill", "copy_rows"
    }  # fmt: skip
    drafting = programs["peagle_decode"]
    caches = {"draft.kv_cache.k", "draft.kv_cache.v"}
    caches |= {f"draft.layers.{layer}.kv_cache.{part}" for layer in (1, 2, 3) for part in "kv"}
    assert mutated_buffers(drafting) == caches
    assert "draft.mask_feature" in used_weights(drafting)
    assert "draft.mask_feature" not in used_weights(programs["draft_prefill"])
    operators = {operator_name(node) for node in calls(drafting)}
    assert {"eagle_aot::sdpa_splitk", "eagle_aot::int4_small_m"} <= operators
