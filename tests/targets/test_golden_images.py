"""Prompts with images compared with recorded results of transformers."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.gemma4 import Gemma4Target, load_gemma4
from eagle_aot.targets.gemma4.vision import load_vision
from eagle_aot.targets.step import ChunkEmbeds, PromptChunk, chain_step
from support.golden_cases import golden_case, relative_error

CASES = ["images/one_image", "images/two_images"]
TOLERANCE = 1e-4
CHUNK = 160  # rows of a chunk, more than the longer window has slots for by default


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Tensor]]:
    """Return a checkpoint's directory and the case's tensors by name."""
    return golden_case(request.param)


def spans(directory: Path) -> list[tuple[int, int]]:
    """Return the (first, end) rows of each image."""
    case = json.loads((directory / "case.json").read_text())
    return [(first, end) for first, end in case["image_spans"]]


def load(directory: Path) -> Gemma4Target:
    target = load_gemma4(
        Checkpoint(directory), torch.float32, CacheSpec(192, torch.float32, chunk=CHUNK)
    )
    target.set_eagle_tap_layers(range(target.num_hidden_layers + 1))
    return target


def image_embeds(
    case: dict[str, Tensor], images: list[tuple[int, int]], *, causal: bool = False
) -> ChunkEmbeds:
    """Return the rows of all images; with `causal` no row sees a later one."""
    count = case["input.tokens"].shape[0]
    embeddings = torch.zeros(1, count, case["expected.image_embeddings"].shape[1])
    last, taken = torch.full((count,), -1), 0
    for first, end in images:
        rows = case["expected.image_embeddings"][taken : taken + end - first]
        embeddings[0, first:end] = rows
        last[first:end] = torch.arange(first, end) if causal else end - 1
        taken += end - first
    return ChunkEmbeds(embeddings, last)


@torch.no_grad()
def run(target: Gemma4Target, tokens: Tensor, rows: ChunkEmbeds, cuts: list[int]) -> list[Tensor]:
    """Run tokens [T] in chunks that end at `cuts`: logits [T, V] and boundaries [L + 1, T, H]."""
    outputs = []
    for start, stop in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        part = ChunkEmbeds(rows.embeddings[:, start:stop], rows.last_visible[start:stop])
        chunk = PromptChunk(torch.arange(start, stop), torch.zeros(1).long(), embeds=part)
        outputs.append(target.run(tokens[None, start:stop], chunk))
    logits, taps = (torch.cat(parts, dim=1)[0] for parts in zip(*outputs, strict=True))
    return [logits, taps.unflatten(-1, (-1, target.hidden_size)).transpose(0, 1)]


def test_an_image_becomes_the_rows_of_transformers(golden: tuple[Path, dict[str, Tensor]]) -> None:
    directory, case = golden
    vision = load_vision(Checkpoint(directory), 128, torch.float32)
    images = zip(case["input.pixel_values"], case["input.image_position_ids"], strict=True)
    for use_prompt_kernel in (False, True):
        with torch.no_grad():
            encoded = [vision(x[None], at[None], use_prompt_kernel)[0] for x, at in images]
        counts = [end - first for first, end in spans(directory)]
        rows = torch.cat([rows[:count] for rows, count in zip(encoded, counts, strict=True)])
        assert relative_error(rows, case["expected.image_embeddings"]) < TOLERANCE
        images = zip(case["input.pixel_values"], case["input.image_position_ids"], strict=True)


@pytest.mark.parametrize("cut", ["whole", "between", "around"])
def test_logits_and_every_boundary_match_transformers(
    golden: tuple[Path, dict[str, Tensor]], cut: str
) -> None:
    directory, case = golden
    images = spans(directory)
    between = [first for first, _ in images[1:]]
    around = [edge for span in images for edge in span]
    cuts = {"whole": [], "between": between, "around": around}[cut]
    logits, states = run(load(directory), case["input.tokens"], image_embeds(case, images), cuts)
    assert relative_error(logits, case["expected.logits"]) < TOLERANCE
    assert torch.equal(logits.argmax(-1), case["expected.logits"].argmax(-1))
    for boundary, expected in enumerate(case["expected.boundary_hidden_states"]):
        assert relative_error(states[boundary], expected) < TOLERANCE, f"boundary {boundary}"


def test_the_text_after_images_is_that_of_transformers(
    golden: tuple[Path, dict[str, Tensor]],
) -> None:
    directory, case = golden
    target, tokens = load(directory), case["input.tokens"]
    logits, _ = run(target, tokens, image_embeds(case, spans(directory)), [])
    new_logits, new_tokens = [logits[-1]], case["expected.new_tokens"]
    for step in range(len(new_tokens) - 1):
        position = torch.tensor([len(tokens) + step])
        with torch.no_grad():
            token = new_logits[-1].argmax().view(1, 1)
            new_logits.append(target.run(token, chain_step(position))[0][0, 0])
    assert torch.equal(torch.stack(new_logits).argmax(-1), new_tokens)
    assert relative_error(torch.stack(new_logits), case["expected.new_logits"]) < TOLERANCE


def test_causal_attention_within_images_exceeds_the_tolerance(
    golden: tuple[Path, dict[str, Tensor]],
) -> None:
    """The recorded control was computed with causal attention."""
    directory, case = golden
    rows = image_embeds(case, spans(directory), causal=True)
    logits, _ = run(load(directory), case["input.tokens"], rows, [])
    assert relative_error(logits, case["control.causal_logits"]) < TOLERANCE
    assert relative_error(logits, case["expected.logits"]) > 1000 * TOLERANCE


def test_an_image_cut_by_a_cached_prefix_has_the_bits_of_the_whole(
    golden: tuple[Path, dict[str, Tensor]],
) -> None:
    directory, case = golden
    target, tokens = load(directory), case["input.tokens"]
    rows, (first, end) = image_embeds(case, spans(directory)), spans(directory)[0]
    logits, states = run(target, tokens, rows, [])
    start = (first + end) // 2
    part = ChunkEmbeds(rows.embeddings[:, start:end], rows.last_visible[start:end])
    chunk = PromptChunk(torch.arange(start, end), torch.zeros(1).long(), embeds=part)
    with torch.no_grad():
        again, _ = target.run(tokens[None, start:end], chunk)
    assert torch.equal(again[0], logits[start:end]) and len(states)
