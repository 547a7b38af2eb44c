"""Speed of answers of given forms, with and without the drafts that a form forces."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import torch
from click.testing import CliRunner

from eagle_aot.lab.bench.forms import CITY, TOOLS, WithoutForcedDrafts, main, texts
from eagle_aot.runtime_runner.sampling.constraint import DraftRows, GrammarCompiler

ROOT = Path(__file__).parents[3]
VOCABULARY = ROOT / "targets" / "tiny" / "target" / "tokenizer.json"


def test_all_ways_have_the_same_tokens_and_forced_drafts_save_rounds(
    tiny_artifact: Path,
) -> None:
    options = "--count", "1", "--repeats", "1", "--max-new-tokens", "24", "--chain-lens", "3"
    done = CliRunner().invoke(main, [str(tiny_artifact), *options, "--json"])
    assert done.exit_code == 0, done.output
    lines = json.loads(done.stdout)["lines"]
    by_form: dict[str, list[Any]] = {}
    for line in lines:
        by_form.setdefault(line["form"], []).append(line)
    assert [len(lines) for lines in by_form.values()] == [2, 3, 3]
    for ways in by_form.values():
        plain, *drafted = ways
        assert plain["rounds"] == plain["tokens"] and plain["chain_len"] == 0
        assert {way["tokens"] for way in drafted} == {plain["tokens"]}
    _, without, forced = by_form["tool call"]
    assert (without["forced"], forced["forced"]) == (False, True)
    assert forced["rounds"] < without["rounds"]


def test_a_constraint_without_forced_drafts_allows_the_same_tokens() -> None:
    compiler = GrammarCompiler(VOCABULARY, 1024, [1])
    plain = compiler.compile("json_schema", CITY)
    without = WithoutForcedDrafts(compiler.compile("json_schema", CITY))
    forced = plain.look_ahead(None)
    assert forced and without.look_ahead(None) == []
    rows, others = (DraftRows([0, 5, 6], [[1], [2], []]) for _ in range(2))
    assert plain.repair(rows) and not without.repair(others) and others.tokens == [0, 5, 6]
    plain.advance(forced[0])
    without.advance(forced[0])
    masks = torch.zeros(2, 1, 128, dtype=torch.uint8)
    for constraint, mask in zip((plain, without), masks, strict=True):
        constraint.fill(DraftRows([0], [[]]), mask)
    assert masks[0].any() and torch.equal(*masks)


def test_schemas_are_schemas_and_texts_differ() -> None:
    for schema in (CITY, *(tool["function"]["parameters"] for tool in TOOLS)):
        jsonschema.Draft202012Validator.check_schema(schema)
    for templates in (("a {}", "b {}"), ("a {}", "b {}", "c {}")):
        assert len({*texts(templates, 16)}) == 16
