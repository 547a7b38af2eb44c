"""The attention operators of an export's methods, and their results up to rounding."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.export import ExportedProgram

from eagle_aot.artifact import DRAFT_DECODE, DRAFT_PREFILL, PREFILL, TARGET_VERIFY
from eagle_aot.common.errors import ExportError, SettingError
from eagle_aot.export import ExportSpec, load_draft, run_check
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.graph_checks import mutated_buffers
from eagle_aot.export.graph_checks.routes import check_attention_route
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.methods import method_specs
from eagle_aot.export.resolution import choose_attention
from eagle_aot.export.spec import Attention, Backend
from eagle_aot.targets import load_target
from eagle_aot.targets.decoder.attention import MASKED
from eagle_aot.targets.step import chain_step
from support.gemma_oracle import random_tokens, run_in_chunks
from support.golden_cases import relative_error
from support.heads.files import HeadShape, write_speculators
from support.pairs import dummy, load, tiny_graphs

SPLITK: Attention = "splitk"
STOCK: Attention = "stock"
ATEN = torch.ops.aten
ATTEND = torch.ops.eagle_aot.sdpa_splitk.default
PROMPT = torch.ops.eagle_aot.sdpa_prompt.default


def graphs(target: Path, head: Path) -> dict[str, ExportedProgram]:
    spec = ExportSpec(
        target_model="gemma4-31b", target_dir=target, draft_dir=head, backend="cuda",
        attention=SPLITK, max_seq_len=128, max_prefill=72,
    )  # fmt: skip
    return run_check(spec)


def count(program: ExportedProgram, target: object) -> int:
    return sum(node.target is target for node in program.graph.nodes)


@pytest.mark.parametrize(("backend", "attention", "split"), [
    ("cuda", None, True), ("cuda", SPLITK, True), ("cuda", STOCK, False), ("xnnpack", None, False),
])  # fmt: skip
def test_methods_attend_by_the_operators_and_make_no_mask(
    backend: Backend, attention: Attention | None, split: bool
) -> None:
    programs = tiny_graphs(backend, attention)
    calls = [count(p, ATTEND) for p in programs.values()]
    masks = [sum(MASKED in node.args for node in p.graph.nodes) for p in programs.values()]
    assert calls == ([0, 6, 1, 0] if split else [0, 0, 0])
    prompts = [count(p, PROMPT) for p in programs.values()]
    assert prompts == ([6, 0, 0, 0] if split else [0, 0, 0])
    assert masks == ([0, 0, 0, 0] if split else [2, 4, 2])  # of committed slots, and of tails


def shape(head_dim: int = 16, num_layers: int = 1) -> HeadShape:
    """Return the shape of a head for the target of `random_pair`, which has dense weights."""
    return HeadShape(
        hidden=64, target_hidden=64, vocab=1024, draft_vocab=256, head_dim=head_dim,
        num_layers=num_layers,
    )  # fmt: skip


@pytest.mark.slow
def test_draft_decode_takes_rounds_and_prompts() -> None:
    spec = dummy("qwen3-0.6b", dummy_layers=3, backend="cuda", max_seq_len=1024)
    drafting = run_check(spec)[DRAFT_DECODE]
    (rows,) = drafting.range_constraints.values()
    assert (int(rows.lower), int(rows.upper)) == (1, 1023) and count(drafting, ATTEND) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "reads"), [(1, 0), (3, 2)])
def test_draft_prefill_stores_keys_and_computes_nothing_else(
    random_pair: tuple[Path, Path], tmp_path: Path, layers: int, reads: int
) -> None:
    """Layers before the last attend to it; the output table is not touched. To draft, every layer
    attends by the operator."""
    head = write_speculators(tmp_path / "head", shape(num_layers=layers))
    programs = graphs(random_pair[0], head)
    drafting = programs[DRAFT_DECODE]
    assert count(drafting, ATTEND) == layers and count(drafting, ATEN.softmax.int) == 0
    storing = programs[DRAFT_PREFILL].run_decompositions({})
    assert count(storing, PROMPT) == reads
    tables = [
        node.meta["val"].shape[-1]
        for node in storing.graph.nodes
        if node.op == "call_function"
        and isinstance(node.meta.get("val"), Tensor)
        and node.meta["val"].ndim
    ]
    assert 256 not in tables  # of the head's vocabulary


def test_a_head_without_a_kernel_keeps_the_stock_attention(
    random_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    head = write_speculators(tmp_path / "head", shape(head_dim=24))
    programs = graphs(random_pair[0], head)
    assert count(programs[TARGET_VERIFY], ATTEND) > 0
    assert count(programs[DRAFT_DECODE], ATTEND) == 0


@pytest.mark.parametrize(("attention", "dtype", "head_dim", "methods"), [
    (SPLITK, torch.bfloat16, 16, {PREFILL, TARGET_VERIFY, DRAFT_DECODE}),
    (SPLITK, torch.bfloat16, 24, {PREFILL, TARGET_VERIFY}),
    (SPLITK, torch.float32, 16, {PREFILL, TARGET_VERIFY}),
    (STOCK, torch.bfloat16, 16, set()),
])  # fmt: skip
def test_which_methods_must_use_the_attention_operators(
    random_pair: tuple[Path, Path],
    tmp_path: Path,
    attention: Attention,
    dtype: torch.dtype,
    head_dim: int,
    methods: set[str],
) -> None:
    head = write_speculators(tmp_path, shape(head_dim))
    spec = ExportSpec(target_model="gemma4-31b", target_dir=random_pair[0], draft_dir=head)
    pair = load(spec, dtype, 128).pair
    specs = method_specs(pair, method_lengths(72, 128, 16), attention == SPLITK)
    assert {name for name, spec in specs.items() if spec.use_splitk} == methods


@torch.no_grad()
def drafted(draft: Eagle3Draft, use_splitk: bool = False) -> Tensor:
    """Recurrent features after a prompt of 40 slots, of 7 more at once and of one."""
    generator = torch.Generator().manual_seed(5)
    slots = 48
    tokens = torch.randint(0, 1024, (1, slots), generator=generator)
    feature = torch.randn(1, slots, 64, generator=generator).to(draft.fc.weight.dtype)
    embedding, outputs = draft.embed(tokens), []
    for start, stop in ((0, 40), (40, 47), (47, 48)):
        part = slice(start, stop)
        step = chain_step(torch.arange(start, stop), use_splitk)
        _, recurrent = draft.run(embedding[:, part], feature[:, part], step)
        outputs.append(recurrent)
    return torch.cat(outputs, dim=1)


def test_a_head_computes_the_same_with_either_attention(tmp_path: Path) -> None:
    """In bfloat16, each as far from the head in float32."""
    files = write_speculators(tmp_path, shape(num_layers=2))
    exact = drafted(load_draft(files, max_seq_len=64))
    errors = {}
    for use_splitk in (False, True):
        draft = load_draft(files, max_seq_len=64, dtype=torch.bfloat16)
        errors[use_splitk] = relative_error(drafted(draft, use_splitk), exact)
    assert errors[True] != errors[False]  # it was another path
    assert errors[True] < 1.1 * errors[False] < 0.1


@torch.no_grad()
@pytest.mark.parametrize("context", [0, 3, 37, 60])
def test_a_target_computes_the_same_with_either_attention(
    random_pair: tuple[Path, Path], context: int
) -> None:
    """In bfloat16, each as far from the target in float32."""
    tokens = random_tokens(context + 8)
    exact, _ = run_in_chunks(load_target(random_pair[0], 96), tokens, [8])
    target = load_target(random_pair[0], 96, torch.bfloat16)
    if context:
        run_in_chunks(target, tokens[:, :context], [12])
    errors = {}
    for use_splitk in (False, True):
        step = chain_step(torch.arange(context, context + 8), use_splitk)
        logits, _ = target.run(tokens[:, context:], step)
        errors[use_splitk] = relative_error(logits[0], exact[context:])
    assert errors[True] != errors[False]  # it was another path
    assert errors[True] < 1.1 * errors[False] < 0.1


def test_a_cache_of_a_prefill_that_another_operator_reads_is_named() -> None:
    program = tiny_graphs(attention=STOCK)[PREFILL]
    caches = mutated_buffers(program)
    with pytest.raises(ExportError, match=r"prefill: cache target\.layers\.\d.* is read by aten::"):
        check_attention_route(PREFILL, program, caches, few_rows=False)


@pytest.mark.parametrize(("attention", "backend", "chosen"), [
    (None, "cuda", SPLITK), (None, "xnnpack", STOCK), (STOCK, "cuda", STOCK),
    (STOCK, "xnnpack", STOCK), (SPLITK, "cuda", SPLITK),
])  # fmt: skip
def test_which_attention_is_chosen(
    attention: Attention | None, backend: Backend, chosen: str
) -> None:
    assert choose_attention(attention, backend) == chosen


def test_splitk_is_refused_for_xnnpack() -> None:
    with pytest.raises(SettingError, match=r"^attention splitk: its kernels run on CUDA"):
        tiny_graphs("xnnpack", SPLITK)
