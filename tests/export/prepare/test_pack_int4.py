"""Packing a target's INT4 weights changes no output and consumes the target."""

import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.export.spec import Backend
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.decoder.cache_views import view_of
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.layer import ResidualLayer
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.targets.decoder.weights import fill_dummy, int4_layers, replace_linear
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.int4 import Int4Linear, PackedInt4Linear
from eagle_aot.targets.int4.linear import PackedModule, PackedProjections
from eagle_aot.targets.int4.weight import random_int4
from eagle_aot.targets.llama import LLAMA
from eagle_aot.targets.pre_norm.config import ATTENTION, FULL, MLP, QKV, PreNormConfig
from eagle_aot.targets.pre_norm.model import PreNormDecoder
from eagle_aot.targets.qwen import QWEN3
from eagle_aot.targets.step import chain_step
from support.gemma_oracle import run_in_chunks
from support.golden_cases import relative_error
from support.pairs import dummy, load, tiny_graphs

LAYERS = 6


def shipped(dtype: torch.dtype = torch.bfloat16) -> Gemma4Target:
    target = load_target("gemma4-tiny", max_seq_len=64, dtype=dtype)
    assert isinstance(target, Gemma4Target)
    target.set_eagle_tap_layers([1, 3, 6])
    return target


@pytest.fixture
def target() -> Gemma4Target:
    """The shipped target as a CUDA export loads it."""
    return shipped()


def random_target(published: PreNormConfig) -> PreNormDecoder:
    """Make a small target with random INT4 weights."""
    torch.manual_seed(0)
    config = replace(
        published, vocab_size=96, hidden_size=64, intermediate_size=96, layer_types=(FULL,) * 3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    )  # fmt: skip
    target = PreNormDecoder(config, torch.bfloat16, CacheSpec(64, torch.bfloat16))
    fill_dummy(target, int4_layers, torch.bfloat16)
    for norm in (m for m in target.modules() if isinstance(m, RMSNorm)):
        assert norm.weight is not None
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    target.set_eagle_tap_layers([0, 1, 2, 3])
    return target.eval()


@torch.no_grad()
def outputs(target: TapTarget) -> tuple[Tensor, Tensor]:
    """Run a prompt, rows that are verified, and single rows: logits [40, V], taps [n, 40, H]."""
    target.reset_cache()
    return run_in_chunks(target, torch.arange(3, 43)[None], [20, 8, 5, 1])


def assert_same_outputs(target: TapTarget, expected: tuple[Tensor, Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(outputs(target), expected, strict=True))


def packed_modules(model: nn.Module) -> dict[str, PackedModule]:
    return {n: m for n, m in model.named_modules() if isinstance(m, PackedModule)}


def order_columns(target: nn.Module) -> None:
    """Make stored columns multiply others; linears of one input have the same order."""
    for linear in target.modules():
        if isinstance(linear, Int4Linear):
            linear.order = torch.arange(linear.in_features).roll(linear.in_features // 3)


@pytest.mark.parametrize("name", ["gemma4", "qwen3", "llama", "act-order"])
def test_a_packed_target_has_the_same_outputs(name: str) -> None:
    sizes = {"qwen3": QWEN3.published[0], "llama": LLAMA.published[1]}
    target = (
        shipped() if name == "gemma4" else random_target(sizes.get(name, sizes["llama"]).config)
    )
    if name == "act-order":
        before = outputs(target)
        order_columns(target)
        assert not torch.equal(outputs(target)[0], before[0])
    expected, layers = outputs(target), target.num_hidden_layers
    target = pack_int4(target, 132)
    kinds = [type(module).__name__ for module in packed_modules(target).values()]
    assert kinds.count("PackedProjections") == kinds.count("PackedGatedInt4") == layers
    assert kinds.count("PackedInt4Linear") == 2 * layers
    assert not any(isinstance(m, Int4Linear) for m in target.modules())
    assert_same_outputs(target, expected)


@pytest.mark.parametrize("biased", [QKV, ("k_proj",), (*ATTENTION, *MLP), ("o_proj", "up_proj")])
def test_biases_are_added_after_packing(biased: tuple[str, ...]) -> None:
    """Queries, keys and values are one product with one bias; a gated unit with a bias is two."""
    target = random_target(replace(LLAMA.published[1].config, biased=biased))
    expected, layers = outputs(target), target.num_hidden_layers
    target = pack_int4(target, 132)
    kinds = [type(module).__name__ for module in packed_modules(target).values()]
    assert kinds.count("PackedProjections") == layers
    assert kinds.count("PackedGatedInt4") == (0 if "up_proj" in biased else layers)
    assert_same_outputs(target, expected)
    for name, tensor in tensors(target).items():
        if name.endswith("bias"):
            tensor.data.add_(1)
    assert not torch.equal(outputs(target)[0], expected[0])


@torch.no_grad()
@pytest.mark.parametrize("biased", [QKV, ("v_proj", "o_proj")])
def test_a_gpus_operators_take_products_with_their_biases(biased: tuple[str, ...]) -> None:
    """Queries, keys and values are stored by one operator, whose input is the biased product."""
    target = random_target(replace(LLAMA.published[1].config, biased=biased))
    tokens = torch.arange(3, 19)[None]
    expected, _ = target.run(tokens, chain_step(torch.arange(16)))
    target = pack_int4(target, 132)
    step = chain_step(torch.arange(16), use_splitk=True)
    cache = target.get_submodule("layers.0.self_attn.kv_cache")
    assert isinstance(cache, KVCache)
    assert view_of(step, cache).uses_operator(4, torch.bfloat16, cache)
    logits, _ = target.run(tokens, step)
    assert relative_error(logits, expected) < 0.02
    for projections in (m for m in target.modules() if isinstance(m, PackedProjections)):
        assert projections.bias is not None
        projections.bias.zero_()
    assert relative_error(target.run(tokens, step)[0], expected) > 0.05


def test_no_linear_outlives_its_packing(target: Gemma4Target) -> None:
    linears = [m for m in target.modules() if isinstance(m, Int4Linear)]
    gone = [weakref.ref(tensor) for linear in linears for tensor in linear.buffers()]
    assert len(gone) == 3 * 41
    del linears
    target = pack_int4(target, 132)
    assert not any(tensor() is not None for tensor in gone)
    names = set(target.state_dict())
    assert not any(name.endswith((".qdata", ".scale", ".zero_point")) for name in names)


def test_packing_a_packed_target_changes_nothing(target: Gemma4Target) -> None:
    once = pack_int4(target, 132)
    kinds, state = [(n, type(m)) for n, m in once.named_modules()], tensors(once)
    twice = pack_int4(once, 132)
    assert [(n, type(m)) for n, m in twice.named_modules()] == kinds
    assert all(tensor is state[name] for name, tensor in tensors(twice).items())


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def test_packing_consumes_the_target_and_leaves_its_layers(target: Gemma4Target) -> None:
    layer = target.get_submodule("layers.0.mlp")
    before = dict(layer.named_modules())
    packed = pack_int4(target, 132)
    assert not list(target.children()) and list(packed.children())
    assert dict(layer.named_modules()) == before
    assert isinstance(layer.down_proj, Int4Linear)


def test_packing_keeps_the_names_of_other_modules(target: Gemma4Target) -> None:
    before = other_names(target)
    assert other_names(pack_int4(target, 132)) == before


def other_names(model: nn.Module) -> set[str]:
    """Return the names of the tensors that are not of INT4 weights."""
    owners = dict(model.named_modules())
    names = model.state_dict()
    int4 = (Int4Linear, PackedModule)
    return {n for n in names if not isinstance(owners[n.rpartition(".")[0]], int4)}


@pytest.mark.parametrize("name", ["layers.0.self_attn.k_proj", "layers.2.self_attn.o_proj"])
def test_a_dense_linear_among_int4_ones_stays_dense(target: Gemma4Target, name: str) -> None:
    """Then its neighbours are packed one by one, and the end of a branch is added whole."""
    linear = target.get_submodule(name)
    assert isinstance(linear, Int4Linear)
    replace_linear(target, name, linear.dense())
    expected = outputs(target)
    target = pack_int4(target, 132)
    assert isinstance(target.get_submodule(name), nn.Linear)
    if name.endswith("k_proj"):
        assert isinstance(target.get_submodule(name.replace("k_", "q_")), PackedInt4Linear)
    assert_same_outputs(target, expected)


def test_an_output_table_can_be_packed_and_read(target: Gemma4Target) -> None:
    """Heads may share it, densely."""
    target.config = replace(target.config, tie_word_embeddings=False)
    target.lm_head = Int4Linear(random_int4(1024, 256, 32, torch.bfloat16), torch.bfloat16)
    table, expected = target.lm_head_weight, outputs(target)
    target = pack_int4(target, 132)
    assert isinstance(target.lm_head, PackedInt4Linear)
    assert torch.equal(target.lm_head_weight, table)
    assert_same_outputs(target, expected)


def test_weights_without_values_are_packed_without_values() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        packed = packed_modules(pack_int4(load(dummy(), torch.bfloat16).pair, 132))
    assert len(packed) == 4 * LAYERS
    assert all(isinstance(weight, FakeTensor) for m in packed.values() for weight in m.parameters())


@pytest.mark.parametrize(("group", "message"), [
    (16, r"^layers\.2\.mlp\.up_proj: INT4 with groups of 16 columns, .* use --backend xnnpack$"),
    (None, r"^layers\.0\.self_attn\.q_proj: INT4 with float32 scales, .* in bfloat16: load it"),
])  # fmt: skip
def test_a_weight_that_no_kernel_reads_is_named_before_anything_is_changed(
    group: int | None, message: str
) -> None:
    dtype = torch.float32 if group is None else torch.bfloat16
    target = shipped(dtype)
    if group is not None:
        weight = random_int4(1024, 256, group, dtype)
        replace_linear(target, "layers.2.mlp.up_proj", Int4Linear(weight, dtype))
    with pytest.raises(UnsupportedError, match=message) as failure:
        pack_int4(target, 132)
    assert "\n" not in str(failure.value)
    assert not packed_modules(target)


@pytest.mark.parametrize(("backend", "joins"), [("cuda", 2 * LAYERS + 1), ("xnnpack", 0)])
def test_each_norm_of_the_stream_is_one_operator_on_a_gpu(backend: Backend, joins: int) -> None:
    operator = torch.ops.eagle_aot.residual_norm.default
    counts = {
        method: [node.target for node in program.graph.nodes].count(operator)
        for method, program in tiny_graphs(backend).items()
    }
    assert {counts.pop(method) for method in ("prefill", "target_verify")} == {joins}
    assert set(counts.values()) == {0}


def test_only_packed_branch_ends_return_parts(target: Gemma4Target) -> None:
    assert len([m for m in target.modules() if isinstance(m, ResidualLayer)]) == LAYERS
    packed = packed_modules(pack_int4(target, 132))
    in_parts = {n for n, m in packed.items() if isinstance(m, PackedInt4Linear) and m.returns_parts}
    ends = {n for n in packed if n.endswith(("self_attn.o_proj", "mlp.down_proj"))}
    assert in_parts == ends and len(ends) == 2 * LAYERS
