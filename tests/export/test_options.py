"""Options as a manifest records them, and as a command line repeats them."""

import json

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.export import ExportOptions, Source
from eagle_aot.export.cli import main
from eagle_aot.export.options import command_line, record_options

NOT_OF_THE_EXPORT = {
    *("target_dir", "draft_dir", "output_dir", "reproduce"),
    *(
        "check_only",
        "describe_draft",
        "describe_target",
        "self_test",
        "self_test_prompts",
        "jobs",
        "gpu_memory",
        "as_json",
        "list_targets",
        "version",
    ),
}
TAPS = st.none() | st.lists(st.integers(0, 80), min_size=3, max_size=3, unique=True).map(sorted)


def test_every_option_that_makes_an_export_is_recorded() -> None:
    recorded = record_options(Source(target_model="gemma4-tiny"), ExportOptions())
    asked = {param.name for param in main.params} - NOT_OF_THE_EXPORT
    assert set(recorded) == asked


@given(
    taps=TAPS,
    layers=st.none() | st.integers(1, 80),
    chain_len=st.none() | st.integers(1, 7),
    quant=st.sampled_from(["none", "int8", "int4"]),
    scheme=st.none() | st.sampled_from(["int4-g32", "int4-g128-hqq"]),
)
def test_a_command_line_says_the_same(
    taps: list[int] | None,
    layers: int | None,
    chain_len: int | None,
    quant: str,
    scheme: str | None,
) -> None:
    source = Source(
        target_model="gemma4-31b",
        tap_layers=None if taps is None else tuple(taps),
        dummy_layers=layers,
        quantize=scheme,
        draft_quant=quant,
    )
    recorded = record_options(source, ExportOptions(chain_len=chain_len, backend="xnnpack"))
    arguments = command_line(json.loads(json.dumps(recorded)))
    parsed = main.make_context("eagle-export", arguments).params
    text = None if taps is None else ",".join(map(str, taps))
    assert {name: parsed[name] for name in recorded} == recorded | {"tap_layers": text}


def test_a_value_cannot_become_an_option() -> None:
    (word,) = command_line({"target_model": "--output-dir=/etc"})
    assert word == "--target-model=--output-dir=/etc"
    assert main.make_context("eagle-export", [word]).params["output_dir"] is None
    with pytest.raises(click.UsageError):
        main.make_context("eagle-export", command_line({"no_such_option": 1}))
