"""An assistant's method keeps the contract of the exported graphs."""

from torch.export import ExportedProgram

from eagle_aot.export import ExportSpec, run_check
from eagle_aot.export.graph_checks import mutated_buffers
from eagle_aot.export.graph_checks.nodes import calls, operator_name, used_weights

METHODS = ["prefill", "target_verify", "mtp_decode", "copy_rows"]
READ = {f"target.layers.{layer}.self_attn.kv_cache.{part}" for layer in (4, 5) for part in "kv"}
"""The last sliding and the last full layer of the shipped target."""


def checked(draft_quant: str) -> dict[str, ExportedProgram]:
    return run_check(
        ExportSpec(
            target_model="gemma4-tiny",
            load_format="dummy",
            drafter="gemma4-assistant",
            draft_quant=draft_quant,
            max_seq_len=128,
            max_prefill=72,
            max_batch_size=2,
        )
    )


def test_on_a_gpu_it_reads_two_caches_of_the_targets_and_in_few_bits() -> None:
    programs = checked("int4")
    assert list(programs) == METHODS
    drafting = programs["mtp_decode"]
    caches = {name for name in used_weights(drafting) if "kv_cache" in name}
    assert caches == mutated_buffers(drafting) == READ
    operators = {operator_name(node) for node in calls(drafting)}
    assert {"eagle_aot::sdpa_splitk", "eagle_aot::int4_small_m"} <= operators
