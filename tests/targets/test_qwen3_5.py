"""Qwen3.5: recurrent states after drafts, batches and prompts; config.json; published layouts."""

import itertools
import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle_aot.artifact.methods import KEPT_STATES
from eagle_aot.common.errors import CheckpointError, SettingError, UnsupportedError
from eagle_aot.export import ExportSpec
from eagle_aot.export.resolution import resolve
from eagle_aot.runtime_runner.decode.step import Draft, DraftLimits, StepRows, tree_rows
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.cache_views import copy_rows
from eagle_aot.targets.decoder.delta_rule import RuleInputs, take_in_and_read
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache
from eagle_aot.targets.decoder.recurrent_views import RecurrentStepView
from eagle_aot.targets.qwen3_5.config import HybridConfig, read_qwen3_5
from eagle_aot.targets.qwen3_5.delta_net import GatedDeltaNet
from eagle_aot.targets.qwen3_5.model import HybridDecoder
from eagle_aot.targets.step import MAX_CHAIN_LEN, TAIL, PromptChunk, Rows, Step, chain_tail
from support.golden_cases import golden_case, relative_error
from support.random_pair import qwen3_5

TOLERANCE = 1e-4
TIGHT = 1e-5  # float32 sums in another order
LENGTH = 160
DIRECTORY, CASE = golden_case("target/qwen3_5")
TEXT: list[int] = (CASE["input.tokens"].tolist() * 2)[:LENGTH]
FIRST = torch.zeros(1, dtype=torch.int64)


def load(sequences: int = 1, directory: Path = DIRECTORY) -> TapTarget:
    return load_target(directory, LENGTH, max_batch_size=sequences)


@torch.no_grad()
def run(target: TapTarget, tokens: Sequence[int], start: int, sequence: int = 0) -> Tensor:
    """Run consecutive tokens, a long run as a prompt; return their logits [T, V]."""
    positions, index = torch.arange(start, start + len(tokens)), FIRST + sequence
    rows: Step | PromptChunk = PromptChunk(positions, index)
    if len(tokens) <= TAIL:
        rows = Step(positions[None], index, chain_tail(positions[None]))
    return target.run(torch.tensor([tokens]), rows)[0][0]


@torch.no_grad()
def test_the_operators_read_what_the_loops_do() -> None:
    logits = []
    for by_operator in (False, True):
        target, index = load(sequences=2), FIRST + 1
        rows: list[Rows] = [PromptChunk(torch.arange(40), index, by_operator)]
        for start, end in ((40, 48), (43, 44), (44, 60)):  # after three of eight drafts, and one
            positions = torch.arange(start, end)[None]
            step = Step(positions, index, chain_tail(positions), use_splitk=by_operator)
            rows.append(step)
        tokens = [TEXT[int(r.row_positions[0, 0]) : int(r.row_positions[0, -1]) + 1] for r in rows]
        runs = zip(tokens, rows, strict=True)
        logits.append(torch.cat([target.run(torch.tensor([t]), r)[0][0] for t, r in runs]))
    assert (logits[0] - logits[1]).norm() < TIGHT * logits[0].norm()


@cache
def transformers_model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        DIRECTORY, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@torch.no_grad()
def oracle(tokens: Sequence[int]) -> Tensor:
    """Return the logits [T, V] of transformers, for the whole text at once."""
    logits: Tensor = transformers_model()(torch.tensor([tokens])).logits[0]
    return logits


@pytest.fixture(scope="module")
def expected() -> Tensor:
    return oracle(TEXT)


def test_new_tokens_are_those_of_transformers() -> None:
    target, tokens = load(), CASE["input.tokens"].tolist()
    run(target, tokens[:70], 0)
    logits = [run(target, tokens[70:], 70)[-1]]
    for new in CASE["expected.new_tokens"].tolist():
        logits.append(run(target, [new], len(tokens) + len(logits) - 1)[-1])
    found = torch.stack(logits[:-1])
    assert torch.equal(found.argmax(-1), CASE["expected.new_tokens"])
    assert relative_error(found, CASE["expected.new_logits"]) < TOLERANCE


@torch.no_grad()
def test_other_numbers_of_heads_and_layers_match_transformers(tmp_path: Path) -> None:
    """In a prompt and token by token; every second layer attends, and heads share keys in pairs."""
    torch.manual_seed(1)
    heads = {"linear_num_value_heads": 6, "linear_num_key_heads": 3}
    model = qwen3_5(num_hidden_layers=5, layer_types=None, full_attention_interval=2, **heads)
    assert model.config.layer_types[1] == model.config.layer_types[3] == "full_attention"
    model.save_pretrained(tmp_path)
    wanted = model(torch.tensor([TEXT[:60]])).logits[0]
    prompt = run(load(directory=tmp_path), TEXT[:60], 0)
    target = load(directory=tmp_path)
    stepped = torch.cat([run(target, [token], n) for n, token in enumerate(TEXT[:60])])
    assert relative_error(prompt, wanted) < TIGHT and relative_error(stepped, wanted) < TIGHT


@pytest.mark.parametrize("context", [0, 1, 3, 17, 64, 65, 70, 130])
@pytest.mark.parametrize("accepted", [0, 1, 3, MAX_CHAIN_LEN])
def test_a_rejected_chain_leaves_no_trace(context: int, accepted: int, expected: Tensor) -> None:
    """Some of 15 drafts are right, and any number of rows runs next."""
    target = load()
    if context:
        run(target, TEXT[:context], 0)
    wrong = [(token + 1) % 160 for token in TEXT]
    right = context + 1 + accepted
    drafted = TEXT[context:right] + wrong[right : context + 1 + MAX_CHAIN_LEN]
    run(target, drafted, context)
    for start, end in ((right, right + 1), (right + 1, right + 9)):
        found = run(target, TEXT[start:end], start)
        assert relative_error(found, expected[start:end]) < TIGHT


@pytest.mark.parametrize(("drafts", "is_right"), [([], True), ([5, 6, 7, 8], False)])
def test_a_state_that_takes_in_the_rows_of_its_step_is_found(
    drafts: list[int], is_right: bool, expected: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is wrong as soon as a draft is rejected."""
    target = load()
    assert isinstance(target, HybridDecoder)
    net = next(m for m in target.modules() if isinstance(m, GatedDeltaNet))
    keep = RecurrentStepView.keep

    def with_rows(view: RecurrentStepView, cache: RecurrentCache, states: Tensor) -> None:
        rows = net._inputs(cache.terms[view.row_slots].unsqueeze(0))
        keep(view, cache, take_in_and_read(states, rows, rows.rows)[0])

    monkeypatch.setattr(RecurrentStepView, "keep", with_rows)
    monkeypatch.setattr(
        RecurrentStepView, "takes", lambda view, cache: torch.zeros(1, TAIL, dtype=torch.bool)
    )
    run(target, TEXT[:20], 0)
    run(target, [TEXT[20], *drafts], 20)
    error = relative_error(run(target, TEXT[21:22], 21), expected[21:22])
    assert error < TIGHT if is_right else error > 0.01


def wide_tree(texts: Sequence[int], firsts: Sequence[int], limits: DraftLimits) -> StepRows:
    """Three drafts after row 0, two after each, one after each of those; the first path is right,
    and there are as many texts as rows 0."""
    parents = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9])
    ranks = torch.tensor([0, 1, 2, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0])
    depths = torch.tensor([1] * 3 + [2] * 6 + [3] * 6)
    first, batch = torch.tensor(firsts), len(firsts)
    right = torch.tensor(TEXT)[(first.unsqueeze(1) + depths).clamp(min=0)]
    drafts = Draft(
        torch.where(torch.tensor([n in (0, 3, 9) for n in range(15)]), right, right + 1 + ranks),
        parents.expand(batch, -1),
        ranks.expand(batch, -1),
        depth=3,
    )
    bonus = torch.tensor(TEXT)[first.clamp(min=0)].unsqueeze(1)
    return tree_rows(bonus, first, torch.tensor(texts), drafts, TAIL, limits)


def as_step(rows: StepRows, moves: Tensor) -> Step:
    return Step(rows.positions, rows.sequences, rows.tail, moves)


@torch.no_grad()
@pytest.mark.parametrize("context", [0, 3, 17, 70])
def test_a_node_follows_its_own_path(context: int, expected: Tensor) -> None:
    """Beside another text whose tree is narrower, and one that is padding; and rows follow a path
    that is accepted."""
    target, firsts = load(sequences=4), (context, 33, -1)
    for sequence, length in enumerate(firsts):
        if length > 0:
            run(target, TEXT[:length], 0, sequence)
    limits = DraftLimits(torch.tensor([15, 2, 15]), torch.tensor([8, 2, 8]))
    rows = wide_tree(range(3), firsts, limits)
    nothing = torch.full((3, TAIL), -1)
    logits, _ = target.run(rows.tokens, as_step(rows, nothing))
    assert rows.lineage is not None and (rows.positions[1] >= 0).sum() == 7
    for text, row in rows.positions[:2].ge(0).nonzero().tolist():
        path = dict.fromkeys(rows.lineage[:, text, row].tolist()[::-1])
        tokens = rows.tokens[text, [*path]].tolist()
        wanted = oracle(TEXT[: firsts[text]] + tokens)[-1]
        assert relative_error(logits[text, row], wanted) < TOLERANCE, (text, row)
    moves = nothing[:1].clone()
    moves[0, -4:] = rows.tail[0, [0, 1, 4, 10], -1]
    after = torch.arange(context + 4, context + 9)
    step = Step(after[None], FIRST, chain_tail(after[None]), moves)
    found, _ = target.run(torch.tensor(TEXT)[after][None], step)
    assert relative_error(found[0], expected[after]) < TIGHT


@torch.no_grad()
def test_nodes_that_are_read_as_a_chain_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the first path are right nevertheless, until a sibling comes."""
    target = load()
    run(target, TEXT[:20], 0)
    rows = wide_tree((0,), (20,), DraftLimits(torch.tensor([15]), torch.tensor([8])))
    step = as_step(rows, torch.full((1, TAIL), -1))
    right = target.run(rows.tokens, step)[0][0]
    monkeypatch.setattr(RecurrentStepView, "is_chain", True)
    wrong = target.run(rows.tokens, step)[0][0]
    assert relative_error(wrong[:2], right[:2]) < TIGHT
    assert all(relative_error(wrong[n], right[n]) > 0.01 for n in range(2, 16))


@torch.no_grad()
def test_sequences_of_a_step_have_states_of_their_own(expected: Tensor) -> None:
    """Also where one of them is padding, has other texts before, or wrong drafts."""
    target = load(sequences=4)
    run(target, TEXT[::-1][:90], 0, sequence=2)
    lengths = {0: 70, 3: 33, 2: 5}
    for sequence, length in lengths.items():
        run(target, TEXT[:length], 0, sequence)
    for first in ([70, -1, 5], [71, 33, -1], [74, 36, 8]):
        rows = torch.tensor([[p + row if p >= 0 else -1 for row in range(3)] for p in first])
        tokens = torch.tensor(TEXT)[rows.clamp(min=0)]
        if first[0] == 70:
            tokens[0, 1:] += 1
        logits, _ = target.run(tokens, Step(rows, torch.tensor([*lengths]), chain_tail(rows)))
        for row in rows.flatten().tolist():
            if row >= 0 and not (first[0] == 70 and row > 70):
                found = logits.flatten(0, 1)[rows.flatten() == row]
                assert relative_error(found, expected[row : row + 1]) < TIGHT, (first, row)


@torch.no_grad()
@pytest.mark.parametrize("sequence", [0, 1])
def test_a_text_continues_from_a_state_that_was_kept(sequence: int) -> None:
    """To the bit, after other text in its sequence, and in another one that has its rows."""
    target = load(sequences=2)
    assert isinstance(target, HybridDecoder)
    recurrent = [m for m in target.modules() if isinstance(m, RecurrentCache)]
    attended = [m for m in target.modules() if isinstance(m, KVCache)]

    def copy(source: int, to: int) -> None:
        for states in recurrent:
            assert states.copy_state(FIRST + source, FIRST + to) == 70

    def continued(sequence: int) -> Tensor:
        chunk = run(target, TEXT[70:140], 70, sequence)
        return torch.cat((chunk, run(target, TEXT[140:150], 140, sequence)))

    run(target, TEXT[:70], 0)
    kept = 2 + KEPT_STATES * 2 - 1
    copy(0, kept)
    expected = continued(0)
    assert not torch.equal(continued(0), expected)
    if sequence:
        run(target, TEXT[::-1][:90], 0, sequence)
        rows = torch.arange(70)
        copy_rows(attended, PromptChunk(rows, FIRST), PromptChunk(rows, FIRST + sequence))
    copy(kept, sequence)
    assert torch.equal(continued(sequence), expected)


def test_a_text_does_not_continue_before_what_a_state_took_in() -> None:
    target = load()
    step = torch.tensor([TEXT[:5]])
    for start in (0, 2, 2):  # drafts may be others
        target.forward_logits_taps(step, torch.arange(start, start + 5))
    with pytest.raises(SettingError, match="position 1: states hold 2 positions: restart at 0"):
        target.forward_logits_taps(step, torch.arange(1, 6))
    with pytest.raises(SettingError, match="17 rows after those of a step: at most 16 fit"):
        target.forward_logits_taps(torch.tensor([TEXT[:17]]), torch.arange(5, 22))
    target.forward_logits_taps(step, torch.arange(5))


def test_the_delta_rule_is_its_formula() -> None:
    """In float64: a state forgets, corrects what it recalls for a key, and answers a query."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 3, 4, 5, generator=generator).double()
    keys, queries = (torch.randn(2, 6, 3, 4, generator=generator).double() for _ in "kq")
    values = torch.randn(2, 6, 3, 5, generator=generator).double()
    decays, rates = (torch.rand(2, 6, 3, generator=generator).double() for _ in "ab")
    tokens = RuleInputs(
        rows=keys.unsqueeze(-2),
        columns=keys.unsqueeze(-1),
        values=values.unsqueeze(-2),
        decays=decays[..., None, None],
        rates=rates[..., None, None],
    )
    final, reads = take_in_and_read(states, tokens, queries.unsqueeze(-2))
    for text, head in itertools.product(range(2), range(3)):
        matrix = states[text, head]
        for n in range(6):
            k, v = keys[text, n, head], values[text, n, head]
            a, b = decays[text, n, head], rates[text, n, head]
            forget = a * (torch.eye(4).double() - b * torch.outer(k, k))
            matrix = forget @ matrix + b * torch.outer(k, v)
            assert torch.allclose(reads[text, n, head, 0], queries[text, n, head] @ matrix)
        assert torch.allclose(final[text, head], matrix)


def rewritten(directory: Path, **changes: Any) -> ConfigSection:
    """Return the config of the golden case with other values; None removes a key."""
    config = json.loads((DIRECTORY / "config.json").read_text()) | changes
    values = {key: value for key, value in config.items() if value is not None}
    return ConfigSection(values, directory / "config.json")


def test_keys_that_are_absent_have_the_published_values(tmp_path: Path) -> None:
    stored = read_qwen3_5(rewritten(tmp_path), LENGTH)
    absent = rewritten(
        tmp_path, layer_types=None, rope_parameters=None, linear_conv_kernel_dim=None
    )
    config = read_qwen3_5(absent, LENGTH)
    assert isinstance(config, HybridConfig)
    assert config.layer_types == stored.layer_types and config.states == stored.states
    assert config.rope == stored.rope and config.rope.embedding(32).inv_freq.shape == (4,)


@pytest.mark.parametrize(("changes", "error", "line"), [
    ({"attn_output_gate": False}, UnsupportedError, "without an output gate"),
    ({"attention_bias": True}, UnsupportedError, "attention biases"),
    ({"layer_types": ["full_attention"]}, CheckpointError, "lists 1 of 8 layers"),
    ({"layer_types": ["sliding_attention"] * 8}, UnsupportedError, "'sliding_attention'"),
    ({"linear_num_value_heads": 3}, CheckpointError, "3 value heads, 2 key heads"),
    ({"linear_conv_kernel_dim": 17}, UnsupportedError, "a convolution of 17 tokens"),
    ({"rope_parameters": {"partial_rotary_factor": 0.01}}, CheckpointError, "rotates 0 of 32"),
    ({"model_type": "qwen3_next"}, UnsupportedError, "'qwen3_next'"),
])  # fmt: skip
def test_what_is_not_computed_is_refused(
    changes: dict[str, Any], error: type[Exception], line: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=line):
        read_qwen3_5(rewritten(tmp_path, **changes), LENGTH)


def test_a_model_that_also_reads_images_is_read_without_its_encoder(tmp_path: Path) -> None:
    """With the names as published, the layer that predicts two tokens ahead, and a tied table."""
    torch.manual_seed(0)
    qwen3_5(tie_word_embeddings=True).save_pretrained(tmp_path / "text")
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path / "text", whole)
    text = json.loads((whole / "config.json").read_text())
    config = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": True}
    (whole / "config.json").write_text(json.dumps(config))
    tensors = load_file(whole / "model.safetensors")
    tensors = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    tensors |= {"model.visual.patch_embed.proj.bias": torch.ones(2), "mtp.fc.weight": torch.ones(2)}
    save_file(tensors, whole / "model.safetensors")
    found = [run(load(directory=d), range(3, 43), 0) for d in (tmp_path / "text", whole)]
    assert torch.equal(*found)


def test_both_backends_have_code_for_states() -> None:
    spec = ExportSpec(target_model="qwen3.5-27b", load_format="dummy", check_only=True)
    assert resolve(spec).backend == "cuda"
    assert resolve(replace(spec, backend="xnnpack")).backend == "xnnpack"
