"""`--table-quant int8-lossless`: a copy of the output table, its operator, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from eagle_aot.artifact import LOSSLESS, TARGET_VERIFY
from eagle_aot.common.errors import EagleError
from eagle_aot.export import ExportSpec, resolve
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.loading.quantise import quantise_table
from eagle_aot.export.methods import method_specs, trace_methods
from eagle_aot.export.pair import Pair
from eagle_aot.export.pipeline import run_check
from eagle_aot.export.plan import plan_export
from eagle_aot.export.prepare.dense_rows import LINEAR
from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.export.prepare.screened_table import TableScreen, screen_table
from eagle_aot.export.spec import CUDA
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.gemma4.vision import ImageTokens
from eagle_aot.triton_kernels.screened_table.packing import screen_copy
from support.pairs import load, short_dummy

SCREENED = torch.ops.eagle_aot.screened_logits.default
LENGTHS = method_lengths(128, 256, 64, 2)


def loaded(drafter: str = "ngram", **options: Any) -> Pair:
    return load(short_dummy(drafter=drafter, **options), torch.bfloat16, 256, 2).pair


@pytest.mark.parametrize("drafter", ["ngram", "eagle3"])
def test_one_operator_multiplies_with_the_table_and_its_copy(drafter: str) -> None:
    pair = loaded(drafter, table_quant=LOSSLESS)
    screen, table = pair.table_screen, pair.target.lm_head_weight
    assert isinstance(screen, TableScreen)
    expected = screen_copy(table)
    for name in expected.__slots__:
        assert torch.equal(getattr(screen, name), getattr(expected, name))
    methods = method_specs(pack_int4(pair, 132), LENGTHS, use_splitk=True)
    assert list(methods[TARGET_VERIFY].inputs)[-1] == "largest_only"
    programs = trace_methods(methods, 2, CUDA)
    nodes = programs[TARGET_VERIFY].graph.nodes
    (product,) = (node for node in nodes if node.target is SCREENED)
    assert product.args[-1].name == "largest_only"
    programs[TARGET_VERIFY].validate()
    others = [programs[name] for name in programs if name != TARGET_VERIFY]
    assert not any(node.target is SCREENED for other in others for node in other.graph.nodes)


def test_a_step_computes_what_it_does_without_the_copy() -> None:
    """On a CPU the operator multiplies with the whole table."""
    programs = [
        trace_methods(method_specs(pack_int4(pair, 132), LENGTHS), 2, CUDA)[TARGET_VERIFY]
        for pair in (loaded(), loaded(table_quant=LOSSLESS))
    ]
    step = [
        example for example, _ in method_specs(loaded(), LENGTHS)[TARGET_VERIFY].inputs.values()
    ]
    plain = programs[0].module()(*step)
    for flag in (0, 1):
        for found, expected in zip(
            programs[1].module()(*step, torch.tensor([flag])), plain, strict=True
        ):
            assert torch.equal(found, expected)


def test_the_graphs_of_the_31b_keep_the_contract_and_a_plan_counts_the_copy() -> None:
    options: dict[str, Any] = {"dummy_layers": 2, "backend": CUDA, "drafter": "ngram"}
    programs = run_check(short_dummy("gemma4-31b", table_quant=LOSSLESS, **options))
    targets = [node.target for node in programs[TARGET_VERIFY].graph.nodes]
    assert targets.count(SCREENED) == 1 and LINEAR not in targets
    plans = [
        plan_export(short_dummy("gemma4-31b", check_only=True, table_quant=kind, **options))
        for kind in ("none", LOSSLESS)
    ]
    sizes = [plan.weight_bytes for plan in plans if plan is not None]
    copy = 262144 * (5376 + 2 * 5376 // 128 + 8)
    assert sizes[1] - sizes[0] == copy


def test_what_is_never_chosen_raises_no_lower_bound() -> None:
    pair = loaded()
    pair.image_tokens = ImageTokens(image=3, begin=4, end=5, never=(3, 9))
    screen_table(pair)
    assert isinstance(pair.table_screen, TableScreen)
    largest = torch.finfo(torch.float32).max
    errors = pair.table_screen.get_parameter("errors")
    assert (errors == largest).nonzero().flatten().tolist() == [3, 9]


def quantised(pair: Pair) -> None:
    quantise_table(pair.target, nn.Module(), "int8")


def capped(pair: Pair) -> None:
    assert isinstance(pair.target, Gemma4Target)
    pair.target.config = replace(pair.target.config, final_logit_softcapping=5.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [(quantised, "the output table is quantised: leave"), (capped, "logits are capped at 5.0")],
)
def test_tables_that_cannot_be_screened_are_refused(
    change: Callable[[Pair], None], message: str
) -> None:
    pair = loaded()
    change(pair)
    with pytest.raises(EagleError, match=f"--table-quant {LOSSLESS}: {message}"):
        screen_table(pair)


def test_only_cuda_has_the_kernels() -> None:
    with pytest.raises(EagleError, match=f"--table-quant {LOSSLESS}: its kernels run on cuda"):
        resolve(ExportSpec(target_model="gemma4-tiny", backend="xnnpack", table_quant=LOSSLESS))
