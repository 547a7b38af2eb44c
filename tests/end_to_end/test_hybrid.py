"""A Qwen3.5 through a real `.pte`: recurrent states change no bit, however drafts are made."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor

from eagle_aot.artifact import COPY_STATES, PREFILL, Manifest
from eagle_aot.artifact.methods import STATE_BLOCK
from eagle_aot.common.errors import ArtifactError, ContextLengthError
from eagle_aot.lab.checks.rows import RowCheck
from eagle_aot.lab.scripted import ScriptedDrafter
from eagle_aot.lab.training.tiny.corpus import first_stories
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import no_moves
from eagle_aot.runtime_runner.engine import Limits
from support.runner.engines import decode

SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7}
LENGTHS = 1, 3, 17, 63, 64, 65, 66, 128, 129, 150
NEW = 24
SHAPES: tuple[dict[str, Any], ...] = (
    *({"chain_len": length} for length in (1, 4, 7)),
    *({"tree": tree} for tree in ((3, 2, 6), (4, 8, 63))),
)


def prompt(runner: Runner, length: int) -> list[int]:
    """Words that repeat, so that some drafts are right."""
    rng = random.Random(length)
    words = [rng.randrange(runner.constants.vocab_size) for _ in range(length // 2 + 1)]
    return (words * 2)[:length]


@pytest.mark.parametrize("context", [0, 3, 17, 120, 511])
def test_a_row_does_not_depend_on_its_neighbours(hybrid_runner: Runner, context: int) -> None:
    """Nor on the sequence, or on the number of rows that a state takes in at a time."""
    found = list(RowCheck(hybrid_runner, context).all())
    named = {one.situation for one in found}
    assert named >= {"among 16", "among 64", "sequence 3", "in a batch of 4"}
    assert named >= {"as nodes of a tree", "after a moved path"}
    assert [one for one in found if one.different] == []


@pytest.mark.parametrize("wrong", [1, 4, 15])
def test_rejected_drafts_leave_no_bit(hybrid_runner: Runner, wrong: int) -> None:
    """In the logits and features of the rows after them."""
    runner, first, tail = hybrid_runner, torch.tensor([20]), hybrid_runner.constants.tail
    check = RowCheck(runner, 20)
    check._fill(0, 20)
    drafts = torch.randint(1, 99, (1, wrong), generator=torch.Generator().manual_seed(wrong))
    tokens = torch.cat(
        (check._text[:, 20:21], (check._text[:, 21 : 21 + wrong] + drafts) % 1024), 1
    )
    sequence = torch.zeros(1, dtype=torch.int64)
    runner.target.verify(chain_rows(tokens, first, sequence, tail), no_moves(1, tail, "cpu"))
    found = check._verify(check._chain(5, start=1))
    assert check._compared("after wrong drafts", found, range(1, 6)).different == 0


def test_chunks_of_any_length_give_the_same_bits(hybrid_runner: Runner) -> None:
    tokens = torch.tensor([prompt(hybrid_runner, 166)])
    sequence = torch.zeros(1, dtype=torch.int64)

    def prefilled(*lengths: int) -> Tensor:
        features, start = [], 0
        for length in lengths:
            part, positions = tokens[:, start : start + length], torch.arange(start, start + length)
            features.append(hybrid_runner.executor.run(PREFILL, part, positions, sequence)[1])
            start += length
        return torch.cat(features, dim=1).clone()

    expected = prefilled(83, 83)
    assert torch.equal(prefilled(70, 96), expected)
    assert torch.equal(prefilled(96, 70), expected)


@pytest.mark.parametrize("sampled", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_change_no_token(hybrid_runner: Runner, sampled: dict[str, Any]) -> None:
    """Those of the head, of all shapes, for prompts that are cut in every way."""
    for length in LENGTHS:
        ids = prompt(hybrid_runner, length)
        plain = hybrid_runner.generate(ids, NEW, speculate=False, **sampled)
        for shape in SHAPES:
            found = hybrid_runner.generate(ids, NEW, **shape, **sampled)
            assert found.token_ids == plain.token_ids, (length, shape)
            assert found.cached_tokens == 0


@pytest.mark.parametrize("kept", [0, 2, 15])
def test_accepted_drafts_change_no_token(hybrid_runner: Runner, kept: int) -> None:
    """None, some or all drafts of a path are right."""
    for length in (5, 64, 100):
        ids = prompt(hybrid_runner, length)
        plain = hybrid_runner.generate(ids, NEW, speculate=False).token_ids

        def right(known: Tensor) -> Tensor:
            return torch.minimum(torch.full_like(known, kept), known)

        for shape in (Shape.chain(4), Shape.chain(15), Shape(3, 2, 6), Shape(15, 3, 63)):
            round_ = Round(
                hybrid_runner.target,
                ScriptedDrafter(length, plain, right),
                shape,
                BatchState([0], 16, "cpu"),
            )
            output, stats = decode(round_, ids, Limits(max_new_tokens=NEW, stop_ids=frozenset()))
            assert output == plain and (stats.accepted > 0) == (kept > 0)


def test_requests_in_parallel_have_the_tokens_that_they_have_alone(hybrid_runner: Runner) -> None:
    """Nine of them over four sequences, so that each is used again after another text."""
    prompts = [prompt(hybrid_runner, length) for length in (*LENGTHS[:9],)]
    alone = [hybrid_runner.generate(ids, NEW, speculate=False).token_ids for ids in prompts]
    for drafts in ({"speculate": False}, *SHAPES):
        together = hybrid_runner.generate_batch(prompts, NEW, **drafts)
        assert [result.token_ids for result in together] == alone


@pytest.mark.parametrize("sampled", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafts", [{"speculate": False}, {"chain_len": 4}, {"tree": (3, 2, 6)}])
def test_reused_rows_change_no_token(
    hybrid_runner: Runner, drafts: dict[str, Any], sampled: dict[str, Any]
) -> None:
    """A conversation, forks of it while others take its sequence, and prompts that come together:
    each continues from a state that is kept at the end of a chunk."""
    runner, options = hybrid_runner, {**drafts, **sampled, "reuse": True}
    first = prompt(runner, 211 + len(drafts) + len(sampled))
    longer = [*first, *prompt(runner, 90)]
    fork = [*first[:200], *prompt(runner, 130)]
    one_by_one = [first, longer, fork, prompt(runner, 70), prompt(runner, 80)]
    one_by_one.append([*fork, *prompt(runner, 110)])
    at_once = [[*first, number, *longer[-90:]] for number in range(6)]
    plain = [
        runner.generate(ids, NEW, speculate=False, **sampled).token_ids
        for ids in one_by_one + at_once
    ]
    runner.engine.sequence_pool.forget()
    found = [runner.generate(ids, NEW, **options) for ids in one_by_one]
    found += runner.generate_batch(at_once, NEW, **options)
    assert [text.token_ids for text in found] == plain
    reused = [text.cached_tokens for text in found]
    blocks, of_fork = (len(ids) // STATE_BLOCK * STATE_BLOCK for ids in (first, fork))
    assert reused[:2] == [0, blocks] and 65 <= reused[2] < 200
    assert reused[3:6] == [0, 0, of_fork]
    assert reused[6] == reused[2], "what the fork has kept"
    assert all(rows == blocks for rows in reused[7:]), "what the first of them has kept"


def test_an_artifact_without_kept_states_is_refused(hybrid_runner: Runner, tmp_path: Path) -> None:
    manifest = Manifest.read(hybrid_runner.directory)
    older = [method for method in manifest.methods if method != COPY_STATES]
    assert len(older) == len(manifest.methods) - 1
    shutil.copytree(hybrid_runner.directory, tmp_path / "older")
    structs.replace(manifest, methods=older).write(tmp_path / "older")
    with pytest.raises(ArtifactError, match="its states follow no trees: export it again"):
        load_artifact(tmp_path / "older")


@pytest.mark.parametrize("left", [1, 2, 17])
def test_a_text_ends_where_the_context_does(hybrid_runner: Runner, left: int) -> None:
    """Also after the longest prompt, for which one token is left."""
    context = hybrid_runner.constants.max_seq_len
    ids = prompt(hybrid_runner, context - left)
    plain = hybrid_runner.generate(ids, NEW, speculate=False)
    assert (len(plain.token_ids), plain.finish_reason) == (left, "context")
    for shape in SHAPES:
        assert hybrid_runner.generate(ids, NEW, **shape).token_ids == plain.token_ids
    with pytest.raises(ContextLengthError, match=f"the context {context}"):
        hybrid_runner.generate(prompt(hybrid_runner, context), NEW)


def test_a_cancelled_neighbour_changes_no_token(hybrid_runner: Runner) -> None:
    ids = prompt(hybrid_runner, 30)
    alone = hybrid_runner.generate(ids, NEW).token_ids
    stream = hybrid_runner.generate_many(
        [prompt(hybrid_runner, 70), ids, ids[:9]], max_new_tokens=4
    )
    next(iter(stream))
    stream.close()  # type: ignore[attr-defined]
    assert hybrid_runner.generate(ids, NEW).token_ids == alone


@pytest.mark.parametrize("sampled", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_the_targets_mtp_layer_drafts_what_it_says(
    hybrid_runner: Runner, sampled: dict[str, Any]
) -> None:
    """About stories that training has not seen, alone and in a batch; and no token changes."""
    chats: Any = [
        [{"role": "user", "content": story.question}] for story in first_stories(4, 0, "test")
    ]
    plain = [hybrid_runner.generate(chat, 40, speculate=False, **sampled) for chat in chats]
    for shape in ({"chain_len": 4}, {"tree": (4, 3, 15)}, {"tree": "auto"}):
        found = [hybrid_runner.generate(chat, 40, **shape, **sampled) for chat in chats]
        together = hybrid_runner.generate_batch(chats, 40, **shape, **sampled)
        for texts in (found, together):
            assert [text.token_ids for text in texts] == [text.token_ids for text in plain]
        assert {text.drafter for text in found} == {"mtp"}
        stats = [text.stats for text in found]
        accepted, rounds = sum(s.accepted for s in stats), sum(s.rounds for s in stats)
        assert accepted > rounds or "auto" in shape.values(), "more than one draft a round is right"
