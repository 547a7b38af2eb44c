"""`eagle-train`: from a target to a head that belongs to it, in parts that resume."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from eagle_aot.common.tokenizer import read_tokenizer
from eagle_aot.export import load_draft
from eagle_aot.export.drafters.eagle3.self_test import readings_of
from eagle_aot.export.drafters.registry import name_of_kind
from eagle_aot.export.self_test.text import continue_greedily
from eagle_aot.export.self_test.verdict import rank
from eagle_aot.lab.training.heads.cli import main
from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.family import TINY_DIR

pytestmark = pytest.mark.slow

TARGET = ["--target-model", "gemma4-tiny", "--device", "cpu"]
ANSWERS = ["--prompts", "8", "--longest-prompt", "100", "--max-new-tokens", "32", "--slots", "16"]
SIZES = [
    *("--tap-layers", "2,4,5", "--held-out", "2", "--draft-vocab-size", "128"),
    *("--intermediate-size", "64", "--batch-tokens", "256", "--learning-rate", "5e-3"),
]
HEAD = [*SIZES, "--steps", "36"]
EOS_IDS = (1, 4)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head for stories, whose answers were written in two goes."""
    directory = tmp_path_factory.mktemp("trained")
    questions, others = directory / "questions.jsonl", directory / "others.jsonl"
    lines = ({"prompt": s.question, "kind": s.question[0]} for s in stories(1, "train"))
    for path, count in ((questions, 60), (others, 8)):
        path.write_text("".join(f"{json.dumps(x)}\n" for x in itertools.islice(lines, count)))
    common = [*TARGET, *ANSWERS, *HEAD, "--prompts-jsonl", questions, "--output-dir", directory]
    for more in (
        ["answers", "--answer-tokens", "300"],
        ["all", "--answer-tokens", "1500", "--eval-prompts-jsonl", others],
    ):
        done = run("--smoke", *common, *more)
        assert done.exit_code == 0, done.output
    return directory


def read(directory: Path, name: str) -> Any:
    return json.loads((directory / name).read_text())


def test_no_prompt_is_answered_twice(trained: Path) -> None:
    shards = [load_file(path) for path in sorted((trained / "answers").glob("*.safetensors"))]
    numbers = torch.cat([shard["numbers"] for shard in shards]).tolist()
    assert len(shards) == 2 and len(set(numbers)) == len(numbers) > 16
    answers = sum(int((shard["lengths"] - shard["starts"]).sum()) for shard in shards)
    assert read(trained, "training.json")["answer_tokens"] == answers >= 1500


def test_the_record_says_what_was_run(trained: Path) -> None:
    found = read(trained, "training.json")
    assert (found["steps"], found["batch_tokens"], found["device"]) == (36, 256, "cpu")
    assert found["tokens"] > 0 and found["final_loss"] > 0
    assert list(found["target"]["sha256"]) == ["config.json", "model.safetensors"]
    for score in found["held_out"].values():
        assert len(score["accuracy_by_step"]) == 7 and score["tau"]["7"] >= score["tau"]["2"] > 1


def test_the_written_head_is_nearly_the_trained_one(trained: Path) -> None:
    """Its linears are INT8 on disk, and its embedding is the target's."""
    scores = read(trained, "training.json")["held_out"]
    assert scores["written"]["tau"]["4"] == pytest.approx(scores["trained"]["tau"]["4"], rel=0.05)
    target = load_target("gemma4-tiny", 64)
    draft = load_draft(trained / "head", target, 64)
    assert torch.equal(draft.embed_tokens.weight, target.embed_weight)
    assert draft.default_chain_len == 4
    parameters = sum(p.numel() for n, p in draft.named_parameters() if n != "embed_tokens.weight")
    assert (trained / "head" / "model.safetensors").stat().st_size < 1.15 * parameters


def test_every_kind_of_prompt_is_measured(trained: Path) -> None:
    kinds = read(trained, "evaluation.json")["kinds"]
    lines = (trained / "others.jsonl").read_text().splitlines()
    assert set(kinds) == {json.loads(line)["kind"] for line in lines} | {"all"}


def test_the_self_test_finds_that_it_fits(trained: Path) -> None:
    target, tokenizer = load_target("gemma4-tiny", 256), read_tokenizer(TINY_DIR / "target")
    texts = [
        continue_greedily(
            target, tokenizer.encode(story.question), range(7), 24, EOS_IDS, torch.device("cpu")
        )
        for story in itertools.islice(stories(5, "test"), 12)
    ]
    draft = load_draft(trained / "head", target, 256)
    readings = readings_of(draft, target.num_hidden_layers)
    assert rank(readings, texts, target.vocab_size).kind == "fits"


@pytest.mark.parametrize("drafter", ["p-eagle", "dflash2"])
def test_heads_of_other_kinds_are_trained_on_the_same_answers(
    drafter: str, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained / "answers", tmp_path / "answers")
    shutil.copy(trained / "prompts.safetensors", tmp_path)
    others = ["--prompts-jsonl", trained / "questions.jsonl"]
    others += ["--eval-prompts-jsonl", trained / "others.jsonl", "--answer-tokens", "1500"]
    kind = ["--drafter", drafter, "--layers", "2", "--steps", "2", "--output-dir", tmp_path]
    done = run("--smoke", *TARGET, *ANSWERS, *SIZES, *others, *kind)
    assert done.exit_code == 0, done.output
    assert name_of_kind(Checkpoint(tmp_path / "head")) == drafter
    head = read(tmp_path, "training.json")["head"]
    assert head["drafter"] == drafter
    assert head.get("num_layers") == 2 or head["layer_types"] == ["sliding_attention"] * 2
    shards = [load_file(path) for path in sorted((tmp_path / "answers").glob("*.safetensors"))]
    assert all(not (shard["flat"] == head["mask_token_id"]).any() for shard in shards)
    assert set(read(tmp_path, "evaluation.json")["kinds"]) > {"all"}


@pytest.mark.parametrize(("arguments", "line"), [
    (["--target-model", "auto"], "--target-dir is needed: auto is read from"),
    (["--target-dir", "nowhere"], "--target-dir nowhere: no such checkpoint directory"),
    ([*TARGET, "head", "--held-out", "2"], "0 texts to train on and 0 to measure on: run the"),
    ([*TARGET, "evaluate"], "evaluate: name prompts with --eval-prompts-jsonl"),
    ([*TARGET, "prompts", "--prompts", "3"], "prompts of at most 128 tokens are too few to"),
])  # fmt: skip
def test_training_that_cannot_be_done_is_refused_in_one_line(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    done = run("--smoke", *arguments, "--output-dir", tmp_path)
    assert done.exit_code == 1 and done.output.count("\n") == 1
    assert line in done.output


def test_training_parts_of_another_target_are_refused(trained: Path) -> None:
    done = run("--smoke", *TARGET, *HEAD, "prompts", "--output-dir", trained)
    assert done.exit_code == 1 and "prompts.safetensors: made for another target" in done.output
