"""Any combination of options against the float64 formulas, and as it was written."""

import tempfile
from pathlib import Path

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eagle_aot.export import load_draft
from eagle_aot.export.drafters.eagle3.reading.geometry import read_geometry
from eagle_aot.export.drafters.eagle3.reading.layout import read_layout
from eagle_aot.targets.checkpoint import Checkpoint
from support.golden_cases import relative_error
from support.heads.files import HeadShape, head_tensors, write_speculators
from support.heads.reference import ReferenceHead

SLOTS = 6
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm")


@st.composite
def shapes(draw: st.DrawFn) -> HeadShape:
    kv_heads = draw(st.sampled_from([1, 2]))
    return HeadShape(
        hidden=draw(st.sampled_from([16, 24])),
        target_hidden=draw(st.sampled_from([16, 24, 40])),
        num_taps=draw(st.integers(1, 5)),
        draft_vocab=draw(st.sampled_from([1, 40, 96])),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([4, 10])),
        norm_before_residual=draw(st.booleans()),
        norm_before_fc=(norm := draw(st.sampled_from(["one", "each", "none"]))) == "one",
        fc_norm=norm == "each",
        norm_output=draw(st.booleans()),
        biases=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        num_layers=draw(st.integers(1, 3)),
        rope_theta=draw(st.sampled_from([100.0, 10000.0, 1e6])),
        seed=draw(st.integers(0, 99)),
    )


@torch.no_grad()
@settings(max_examples=40, deadline=None)
@given(shape=shapes())
@example(HeadShape())
@example(HeadShape(fc_norm=True, target_hidden=24, num_taps=4, norm_output=True))
@example(HeadShape(num_layers=3, qk_norm=True, biases=True, norm_before_residual=True))
def test_any_head_computes_what_the_formulas_say(shape: HeadShape) -> None:
    generator = torch.Generator().manual_seed(shape.seed)
    width = shape.num_taps * shape.target_hidden
    taps = torch.randn(1, SLOTS, width, generator=generator)
    tokens = torch.randint(0, shape.vocab, (1, SLOTS), generator=generator)
    with tempfile.TemporaryDirectory() as directory:
        written = write_speculators(Path(directory), shape, taps=list(range(shape.num_taps)))
        draft = load_draft(written, max_seq_len=16)
    reference = ReferenceHead(head_tensors(shape), shape)
    fused = reference.fuse(taps[0])
    embedding = reference.tensors["embed_tokens.weight"][tokens[0]]
    wanted = (fused, *reference.run(embedding, fused))
    feature = draft.fuse(taps)
    found = (feature, *draft.forward_cached(draft.embed(tokens), feature, torch.arange(SLOTS)))
    assert found[1].dtype == torch.float32
    for value, expected in zip(found, wanted, strict=True):
        assert relative_error(value[0], expected) < 1e-5


@settings(max_examples=40, deadline=None)
@given(shape=shapes())
def test_any_head_is_read_as_it_was_written(shape: HeadShape) -> None:
    with tempfile.TemporaryDirectory() as directory:
        written = write_speculators(Path(directory), shape, taps=list(range(shape.num_taps)))
        config = read_geometry(read_layout(Checkpoint(written), None), None)
    assert (config.hidden_size, config.target_hidden_size) == (shape.hidden, shape.target_hidden)
    assert (config.num_taps, config.num_layers) == (shape.num_taps, shape.num_layers)
    assert (config.num_heads, config.num_kv_heads) == (shape.heads, shape.kv_heads)
    assert (config.head_dim, config.draft_vocab_size) == (shape.head_dim, shape.draft_vocab)
    assert (config.vocab_size, config.intermediate_size) == (shape.vocab, shape.inner)
    assert (config.rope.theta, config.hidden_act) == (shape.rope_theta, "silu")
    assert config.tap_layers == tuple(range(shape.num_taps)) and config.default_chain_len == 5
    for flag in FLAGS:
        assert getattr(config, flag) is getattr(shape, flag)
    biases = (config.attention_bias, config.output_bias, config.mlp_bias, config.fc_bias)
    assert biases == (shape.biases,) * 4
