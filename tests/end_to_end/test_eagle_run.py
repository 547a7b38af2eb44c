"""`eagle-run`: its output, and the artifacts and arguments it refuses."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from executorch.exir import to_edge
from matplotlib.image import imread

from eagle_aot.artifact import METHODS, Manifest, file_record
from eagle_aot.artifact.locate import local_artifact
from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.hub import Repository
from eagle_aot.export.publish.push import push
from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.cli import main
from support.hub import WRITER, hub_server, use_hub
from support.refusals import refuses

OPTIONS = {
    "artifact", "--prompt", "--prompt-file", "--image", "--image-tokens", "--prompts-jsonl",
    "--chat", "--system", "--batch-size", "--raw-prompt", "--max-new-tokens", "--chain-len",
    "--tree", "--drafter", "--no-speculation", "--warm-up", "--reuse", "--executor", "--stop",
    "--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--recommended-sampling", "--n",
    "--logprobs", "--params", "--ignore-eos", "--json", "--version", "--plot", "--quiet",
    "--json-schema", "--regex", "--grammar", "--choices",
}  # fmt: skip
FIELDS = {
    "seed", "logprobs", "prompt_logprobs", "parameters", "prompt_tokens", "cached_tokens",
    "new_tokens", "token_ids", "text", "finish_reason", "rounds", "target_forwards", "drafted",
    "accepted", "tau", "acceptance_rate", "acceptance_by_position",
    "absolute_acceptance_by_position", "accepted_lengths", "prefill_seconds", "decode_seconds",
    "tokens_per_second", "executor", "drafter", "chain_len", "rounds_by_chain_len",
    "rounds_by_shape", "looked_at", "tree", "acceptance_by_rank",
}  # fmt: skip
QUESTION = next(stories(8, "test")).question
IMPORT = "import time:"
"""How lines begin that `-X importtime` prints."""
SLOW = {"transformers", "huggingface_hub", "torch._dynamo", "torch._inductor", "triton", "sympy",
        "executorch.exir", "torchao", "matplotlib", "PIL"}  # fmt: skip
"""What an answer can do without, and takes longer to import than many an answer takes."""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def copied(batch_artifact: Path, tmp_path: Path) -> Path:
    """An artifact to damage."""
    return Path(shutil.copytree(batch_artifact, tmp_path / "copy"))


def test_published_artifact_answers_as_the_local_one(
    tiny_artifact: Path, tiny: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_server({}) as hub:
        use_hub(hub, tmp_path, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", WRITER)
        push(tiny_artifact, Repository("org/tiny"))
        monkeypatch.delenv("HF_TOKEN")
        options = ("--prompt", QUESTION, "--json", "--max-new-tokens", "12")
        result = run("org/tiny", *options)
        assert result.exit_code == 0, result.output
        assert "org/tiny: downloads" in result.stderr
        answer = json.loads(result.stdout)
        assert answer["token_ids"] == tiny.generate(QUESTION, 12).token_ids
        hub.requests.clear()
        assert local_artifact("org/tiny").is_dir() and not hub.requests


def test_the_options_are_frozen() -> None:
    assert {opt for param in main.params for opt in param.opts} == OPTIONS


def test_json_has_exactly_the_documented_fields(tiny_artifact: Path) -> None:
    program = Path(sys.executable).with_name("eagle-run")
    command: list[str | Path] = [sys.executable, "-X", "importtime", program]
    done = subprocess.run(
        [*command, tiny_artifact, "--prompt", QUESTION, "--json"], capture_output=True, text=True
    )
    lines = done.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith(IMPORT)}
    assert done.returncode == 0 and all(line.startswith(IMPORT) for line in lines)
    assert "torch" in imported and not imported & SLOW
    result = json.loads(done.stdout)
    assert set(result) == FIELDS
    assert result["new_tokens"] == len(result["token_ids"])
    assert result["finish_reason"] == "stop"
    assert result["target_forwards"] == result["rounds"] + 1
    assert result["tau"] == (result["new_tokens"] - 1) / result["rounds"]
    assert (result["executor"], result["drafter"]) == ("executorch", "eagle3")
    assert len(result["acceptance_by_position"]) == result["chain_len"] == 4


@pytest.mark.parametrize(("option", "name"), [("--chain-len", "chain length"), ("--tree", "tree")])
def test_auto_reports_what_it_chose(tiny_artifact: Path, option: str, name: str) -> None:
    plain = run(tiny_artifact, "--prompt", QUESTION, "--no-speculation", "--json")
    auto = run(tiny_artifact, "--prompt", QUESTION, option, "auto", "--json")
    result = json.loads(auto.stdout)
    assert result["chain_len"] == "auto"
    assert result["tree"] == (None if option == "--chain-len" else "auto")
    assert result["token_ids"] == json.loads(plain.stdout)["token_ids"]
    assert sum(result["rounds_by_shape"].values()) == result["rounds"]
    drafted = dict(enumerate(result["rounds_by_chain_len"]))
    assert sum(k * rounds for k, rounds in drafted.items()) == result["drafted"]
    report = run(tiny_artifact, "--prompt", QUESTION, option, "auto").stderr
    assert re.search(rf"{name} +auto: (K = \d|plain|tree \d,\d,\d+) in \d+ rounds", report)


def test_a_drafter_is_named(tiny_artifact: Path) -> None:
    own = json.loads(run(tiny_artifact, "--prompt", QUESTION, "--json").stdout)
    found = run(tiny_artifact, "--prompt", QUESTION, "--json", "--drafter", "ngram")
    result = json.loads(found.stdout)
    assert result["token_ids"] == own["token_ids"]
    assert (result["drafter"], result["chain_len"]) == ("ngram", 4)
    assert result["rounds"] > own["rounds"]
    report = run(tiny_artifact, "--prompt", QUESTION, "--drafter", "ngram").stderr
    assert re.search(r"drafter +ngram", report)


def test_speculation_changes_nothing_but_the_cost(tiny_artifact: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    generator = stories(12, "test")
    lines = [json.dumps({"prompt": next(generator).question}) for _ in range(5)]
    prompts.write_text("\n".join([*lines, '{"token_ids": [2, 3, 40]}']))
    fast = run(tiny_artifact, "--prompts-jsonl", prompts, "--json")
    plain = run(tiny_artifact, "--prompts-jsonl", prompts, "--json", "--no-speculation")
    assert fast.exit_code == plain.exit_code == 0
    *pairs, summaries = [
        (json.loads(a), json.loads(b))
        for a, b in zip(fast.stdout.splitlines(), plain.stdout.splitlines(), strict=True)
    ]
    assert len(pairs) == 6
    for quick, slow in pairs:
        assert quick["token_ids"] == slow["token_ids"]
        assert quick["text"] == slow["text"]
        assert (slow["drafted"], slow["chain_len"], slow["drafter"]) == (0, 0, None)
    assert sum(q["target_forwards"] for q, _ in pairs) < sum(
        s["target_forwards"] / 2 for _, s in pairs
    )
    for which, whole in enumerate(one["summary"] for one in summaries):
        of_one = {
            "cached_tokens", "token_ids", "text", "finish_reason", "executor", "drafter", "seed",
            "parameters", "logprobs", "prompt_logprobs",
        }  # fmt: skip
        assert set(whole) == FIELDS - of_one | {"requests", "drafters"}
        assert whole["requests"] == 6
        assert whole["drafters"] == ({} if which else {"eagle3": 6})
        for name in ("new_tokens", "rounds", "target_forwards", "drafted", "accepted"):
            assert whole[name] == sum(pair[which][name] for pair in pairs)
        assert whole["tau"] == (whole["new_tokens"] - 6) / whole["rounds"]


def test_all_requests_are_summed_up_and_drawn(tiny_artifact: Path, tmp_path: Path) -> None:
    prompts, plot = tmp_path / "prompts.jsonl", tmp_path / "acceptance.png"
    prompts.write_text("\n".join(2 * [json.dumps({"prompt": QUESTION})]))
    one = run(tiny_artifact, "--prompt", QUESTION, "--plot", plot)
    assert one.exit_code == 0 and imread(plot).shape[:2] == (540, 1350)
    plot.unlink()
    both = run(tiny_artifact, "--prompts-jsonl", prompts, "--plot", plot)
    assert both.exit_code == 0 and plot.exists()
    assert "In all" not in one.stderr
    each, whole = both.stderr.split("In all")
    assert each.count("tau ") == 2 and "requests" in whole and "drafts accepted" in whole


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["--plot", "a.jpg"], 1, "--plot a.jpg: must end in .png"),
    (["--plot", "a.png", "--no-speculation"], 2, "leave out --plot"),
    (["--plot", "a.png", "--max-new-tokens", "1"], 1, "a.png: nothing was drafted"),
])  # fmt: skip
def test_a_plot_of_nothing_is_refused(
    tiny_artifact: Path, arguments: list[str], code: int, message: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = run(tiny_artifact, "--prompt", "Tom", *arguments)
    assert result.exit_code == code and message in result.stderr
    assert not list(tmp_path.iterdir())


def test_text_streams_to_stdout_alone(tiny_artifact: Path) -> None:
    result = run(tiny_artifact, "--prompt", QUESTION, "--quiet")
    expected = json.loads(run(tiny_artifact, "--prompt", QUESTION, "--json").stdout)["text"]
    assert (result.stdout, result.stderr) == (expected + "\n", "")
    shown = run(tiny_artifact, "--prompt", QUESTION)
    assert shown.stdout == expected + "\n"
    assert "tau" in shown.stderr and "acceptance by position" in shown.stderr


def test_a_raw_prompt_has_no_turns(tiny_artifact: Path) -> None:
    chat = json.loads(run(tiny_artifact, "--prompt", "Tom", "--json").stdout)
    raw = json.loads(run(tiny_artifact, "--prompt", "Tom", "--json", "--raw-prompt").stdout)
    assert raw["prompt_tokens"] < chat["prompt_tokens"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["--prompt", "Tom", "--chain-len", "16"], "this artifact takes 1 to 15"),
    (["--prompt", "Tom", "--tree", "6,8,64"], "tree 6,8,64: there must be 1 to 63 nodes"),
    (["--prompt", "Tom", "--tree", "auto", "--chain-len", "auto"], "name one of them"),
    (["--prompt", "Tom", "--tree", "auto", "--drafter", "ngram"], "proposes chains"),
    (["--prompt", "Tom", "--temperature", "-1"], "temperature -1.0: must be"),
    (["--prompt-file", "/none"], "/none: cannot be read"),
])  # fmt: skip
def test_wrong_arguments_are_refused_in_one_line(
    batch_artifact: Path, arguments: list[str], message: str
) -> None:
    refuses(run(batch_artifact, *arguments), message)


@pytest.mark.parametrize("together", [[], ["--batch-size", "1"]])
def test_a_refused_prompt_is_named_and_the_others_answered(
    batch_artifact: Path, tmp_path: Path, together: list[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"token_ids": [5]}\n{"token_ids": [1024]}\n{"token_ids": [6]}')
    options: list[str | Path] = ["--prompts-jsonl", prompts, "--max-new-tokens", "1", *together]
    result = run(batch_artifact, *options)
    why = "prompt ids 1024..1024 leave the vocabulary of 1024"
    assert result.exit_code == 1 and len(result.stdout.split()) == 2
    assert f"Error: prompt 2: {why}\n" in result.stderr
    assert result.stderr.endswith(f"Error: 1 of 3 failed: prompt 2: {why}\n")
    lines = [
        json.loads(line) for line in run(batch_artifact, *options, "--json").stdout.split("\n")[:-1]
    ]
    assert lines[1] == {"error": why} and "token_ids" in lines[0].keys() & lines[2].keys()
    assert lines[3]["summary"]["requests"] == 2


def test_an_artifact_runs_in_a_directory_whose_name_is_no_utf_8(
    batch_artifact: Path, tmp_path: Path
) -> None:
    copy = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(batch_artifact, copy, copy_function=os.link)
    options = ("--prompt", "Tom", "--max-new-tokens", "4", "--json", "--plot", copy / "a.png")
    there, here = run(copy, *options), run(batch_artifact, *options[:-2])
    assert (there.exit_code, here.exit_code) == (0, 0), there.output
    texts = [json.loads(result.stdout)["token_ids"] for result in (there, here)]
    assert texts[0] == texts[1] and (copy / "a.png").exists()


def test_a_truncated_program_is_refused_even_with_its_own_hash(copied: Path) -> None:
    program = copied / "model.pte"
    program.write_bytes(program.read_bytes()[:5000])
    rehash(copied)
    refuses(run(copied, "--prompt", "a"), "not a readable ExecuTorch program")


def test_constants_that_differ_from_the_manifest_are_refused(copied: Path) -> None:
    path = copied / "manifest.json"
    stored = json.loads(path.read_text())
    stored["constants"]["get_max_seq_len"] += 1
    path.write_text(json.dumps(stored))
    refuses(run(copied, "--prompt", "a"), "the program's constants are not the manifest's")


def test_text_needs_a_tokenizer_and_ids_do_not(copied: Path) -> None:
    manifest = Manifest.read(copied)
    for name in set(manifest.files) - {"model.pte", "model.ptd"}:
        del manifest.files[name]
        (copied / name).unlink()
    manifest.write(copied)
    refuses(run(copied, "--prompt", "a"), "has no tokenizer: give token ids instead")
    result = load_artifact(copied).generate([5, 6, 7], 4)
    assert (len(result.token_ids), result.text) == (4, None)


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.parametrize(("methods", "message"), [
    (["forward"], "method prefill is missing: export again"),
    ([*METHODS, "copy_rows"], "constant get_max_seq_len is missing: export again"),
])  # fmt: skip
def test_a_foreign_program_is_refused(copied: Path, methods: list[str], message: str) -> None:
    exported = {name: torch.export.export(Double(), (torch.ones(2),)) for name in methods}
    (copied / "model.pte").write_bytes(to_edge(exported).to_executorch().buffer)
    rehash(copied)
    with pytest.raises(ArtifactError, match=message):
        load_artifact(copied)


def rehash(directory: Path) -> None:
    """Make the manifest agree with a changed program."""
    manifest = Manifest.read(directory)
    manifest.files["model.pte"] = file_record(directory / "model.pte")
    manifest.write(directory)
