"""Prompts with pictures against numbers that transformers computed from the same weights."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.gemma4 import Gemma4Target, load_gemma4
from eagle_aot.targets.gemma4.vision import load_vision
from eagle_aot.targets.step import GivenRows, PromptChunk, chain_step
from support.golden_cases import golden_case, relative_error

CASES = ["images/one_image", "images/two_images"]
TOLERANCE = 1e-4
ROOM = 160  # rows of a chunk, which the longer window has no room for by itself


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Tensor]]:
    return golden_case(request.param)


def spans(directory: Path) -> list[tuple[int, int]]:
    """Of the pictures' rows, from the first up to behind the last."""
    told = json.loads((directory / "case.json").read_text())
    return [(first, behind) for first, behind in told["image_spans"]]


def load(directory: Path) -> Gemma4Target:
    target = load_gemma4(
        Checkpoint(directory), torch.float32, CacheSpec(192, torch.float32, chunk=ROOM)
    )
    target.set_eagle_tap_layers(range(target.num_hidden_layers + 1))
    return target


def given(
    case: dict[str, Tensor], pictures: list[tuple[int, int]], *, causal: bool = False
) -> GivenRows:
    """All rows of the pictures; with `causal` none sees ahead."""
    count = case["input.tokens"].shape[0]
    embeddings = torch.zeros(1, count, case["expected.image_embeddings"].shape[1])
    last, taken = torch.full((count,), -1), 0
    for first, behind in pictures:
        rows = case["expected.image_embeddings"][taken : taken + behind - first]
        embeddings[0, first:behind] = rows
        last[first:behind] = torch.arange(first, behind) if causal else behind - 1
        taken += behind - first
    return GivenRows(embeddings, last)


@torch.no_grad()
def run(target: Gemma4Target, tokens: Tensor, rows: GivenRows, cuts: list[int]) -> list[Tensor]:
    """Logits [T, V] and boundaries [L + 1, T, H] of tokens [T] in chunks that end at `cuts`."""
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        part = GivenRows(rows.embeddings[:, start:stop], rows.last_visible[start:stop])
        chunk = PromptChunk(torch.arange(start, stop), torch.zeros(1).long(), given=part)
        found.append(target.run(tokens[None, start:stop], chunk))
    logits, taps = (torch.cat(parts, dim=1)[0] for parts in zip(*found, strict=True))
    return [logits, taps.unflatten(-1, (-1, target.hidden_size)).transpose(0, 1)]


def test_a_picture_becomes_the_rows_that_transformers_makes_of_it(
    golden: tuple[Path, dict[str, Tensor]],
) -> None:
    directory, case = golden
    vision = load_vision(Checkpoint(directory), 128, torch.float32)
    pictures = zip(case["input.pixel_values"], case["input.image_position_ids"], strict=True)
    for streams_keys in (False, True):
        with torch.no_grad():
            found = [vision(x[None], at[None], streams_keys)[0] for x, at in pictures]
        counts = [behind - first for first, behind in spans(directory)]
        rows = torch.cat([rows[:count] for rows, count in zip(found, counts, strict=True)])
        assert relative_error(rows, case["expected.image_embeddings"]) < TOLERANCE
        pictures = zip(case["input.pixel_values"], case["input.image_position_ids"], strict=True)


@pytest.mark.parametrize("cut", ["whole", "between", "around"])
def test_logits_and_every_boundary_match_transformers(
    golden: tuple[Path, dict[str, Tensor]], cut: str
) -> None:
    directory, case = golden
    pictures = spans(directory)
    between = [first for first, _ in pictures[1:]]
    around = [edge for span in pictures for edge in span]
    cuts = {"whole": [], "between": between, "around": around}[cut]
    logits, states = run(load(directory), case["input.tokens"], given(case, pictures), cuts)
    assert relative_error(logits, case["expected.logits"]) < TOLERANCE
    assert torch.equal(logits.argmax(-1), case["expected.logits"].argmax(-1))
    for boundary, wanted in enumerate(case["expected.boundary_hidden_states"]):
        assert relative_error(states[boundary], wanted) < TOLERANCE, f"boundary {boundary}"


def test_the_text_behind_pictures_is_the_one_of_transformers(
    golden: tuple[Path, dict[str, Tensor]],
) -> None:
    directory, case = golden
    target, tokens = load(directory), case["input.tokens"]
    logits, _ = run(target, tokens, given(case, spans(directory)), [])
    found, wanted = [logits[-1]], case["expected.new_tokens"]
    for step in range(len(wanted) - 1):
        position = torch.tensor([len(tokens) + step])
        with torch.no_grad():
            found.append(target.run(found[-1].argmax().view(1, 1), chain_step(position))[0][0, 0])
    assert torch.equal(torch.stack(found).argmax(-1), wanted)
    assert relative_error(torch.stack(found), case["expected.new_logits"]) < TOLERANCE


def test_attention_that_is_causal_everywhere_is_seen(
    golden: tuple[Path, dict[str, Tensor]],
) -> None:
    """It gives the numbers of the control, which are others."""
    directory, case = golden
    rows = given(case, spans(directory), causal=True)
    logits, _ = run(load(directory), case["input.tokens"], rows, [])
    assert relative_error(logits, case["control.causal_logits"]) < TOLERANCE
    assert relative_error(logits, case["expected.logits"]) > 1000 * TOLERANCE


def test_the_rest_of_a_picture_that_is_in_the_cache_has_the_bits_of_the_whole(
    golden: tuple[Path, dict[str, Tensor]],
) -> None:
    directory, case = golden
    target, tokens = load(directory), case["input.tokens"]
    rows, (first, behind) = given(case, spans(directory)), spans(directory)[0]
    logits, states = run(target, tokens, rows, [])
    start = (first + behind) // 2
    part = GivenRows(rows.embeddings[:, start:behind], rows.last_visible[start:behind])
    chunk = PromptChunk(torch.arange(start, behind), torch.zeros(1).long(), given=part)
    with torch.no_grad():
        again, _ = target.run(tokens[None, start:behind], chunk)
    assert torch.equal(again[0], logits[start:behind]) and len(states)
