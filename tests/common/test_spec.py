"""Structs whose fields are the options of a command."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from click.testing import CliRunner

from eagle_aot.common.errors import SettingError
from eagle_aot.common.spec import Option, OptionsOf, check_fields, recorded, spec_command


def id_and_bias(word: str) -> dict[int, float]:
    token, _, bias = word.partition("=")
    return {int(token): float(bias)}


class Example(msgspec.Struct, kw_only=True, frozen=True):
    model: Annotated[str, Option("A model.", metavar="NAME")]
    length: Annotated[int | None, Option("Tokens.", "Shape", least=16, most=64)] = None
    share: Annotated[float, Option("Of the time.", least=0, most=1)] = 0.5
    backend: Annotated[Literal["cpu", "gpu"], Option("Where it runs.", "Shape")] = "cpu"
    layers: Annotated[tuple[int, ...] | None, Option("Layers.", commas=True)] = None
    stop: Annotated[tuple[str, ...], Option("Texts.")] = ()
    bias: Annotated[dict[int, float], Option("A bias.", parse=id_and_bias)] = {}
    cached: Annotated[bool, Option("Do not cache.", flag="--no-cache", recorded=False)] = True
    as_json: Annotated[bool, Option("As JSON.", flag="--json", recorded=False)] = False
    reuse: Annotated[bool | None, Option("Reuse.")] = None
    output: Annotated[Path | None, Option("A folder.", recorded=False)] = None
    steps: int = 3

    def __post_init__(self) -> None:
        check_fields(self)


def parsed(*words: str) -> Example:
    seen: list[Example] = []
    result = CliRunner().invoke(spec_command(Example)(seen.append), words)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_command_without_options_has_the_fields_defaults() -> None:
    assert parsed("--model", "a") == Example(model="a")


def test_options_of_every_type_become_their_fields() -> None:
    words = (
        "--model=a --length=20 --share=0.25 --backend=gpu --layers=1,2 --stop=x --stop=y "
        "--bias=4=-1.5 --json --no-reuse --no-cache --output=out"
    )
    assert parsed(*words.split()) == Example(
        model="a", length=20, share=0.25, backend="gpu", layers=(1, 2), stop=("x", "y"),
        bias={4: -1.5}, as_json=True, reuse=False, cached=False, output=Path("out"),
    )  # fmt: skip


@pytest.mark.parametrize(("words", "line"), [
    ("--length=8", "8 is not in the range 16<=x<=64"),
    ("--backend=tpu", "'tpu' is not one of 'cpu', 'gpu'; did you mean gpu?"),
    ("--backend=7", "'7' is not one of 'cpu', 'gpu'\n"),
    ("--lenght=20", "No such option '--lenght'. Did you mean '--length'?"),
    ("--layers=1,x", "'1,x': expected values and commas"),
    ("--bias=4", "could not convert string to float"),
])  # fmt: skip
def test_word_of_another_type_is_a_usage_error(words: str, line: str) -> None:
    result = CliRunner().invoke(spec_command(Example)(print), ["--model=a", words])
    assert result.exit_code == 2 and line in result.stderr


@pytest.mark.parametrize(("values", "line"), [
    ({"length": 8}, "--length 8: must be a whole number from 16 to 64"),
    ({"length": True}, "--length True: must be a whole number from 16 to 64"),
    ({"share": 2}, "--share 2: must be a number from 0 to 1"),
    ({"backend": "tpu"}, r"--backend tpu: must be one of cpu, gpu; did you mean gpu\?$"),
    ({"backend": "x"}, "--backend x: must be one of cpu, gpu$"),
])  # fmt: skip
def test_value_from_python_outside_its_range_is_refused(values: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingError, match=line):
        Example(model="a", **values)


def test_recorded_values_leave_out_what_does_not_change_the_artifact() -> None:
    values = recorded(Example(model="a", as_json=True))
    assert list(values) == [
        "model", "length", "share", "backend", "layers", "stop", "bias", "reuse",
    ]  # fmt: skip


def test_help_lists_options_under_their_groups() -> None:
    text = CliRunner().invoke(spec_command(Example)(print), ["--help"]).output
    shape, options = text.index("Shape:"), text.index("Options:")
    assert options < text.index("--model") < shape < text.index("--length")
    assert "--steps" not in text


class Params(msgspec.Struct, kw_only=True, frozen=True):
    size: Annotated[int, Option("A size.", "Params", least=1)] = 7
    texts: Annotated[tuple[str, ...], Option("Texts.", "Params", flag="--text")] = ()
    left_out: Annotated[int, Option("Not an option of this command.")] = 1
    hidden: Annotated[int, Option("Not an option of any command.", shown=False)] = 1


class Base(msgspec.Struct, kw_only=True, frozen=True):
    device: Annotated[str, Option("A device.", "Device")] = "cpu"
    params: Annotated[dict[str, Any], OptionsOf(Params, without=("left_out",))] = {}


class Nesting(Base, kw_only=True, frozen=True):
    model: Annotated[str, Option("A model.", "Model")] = "a"


@pytest.mark.parametrize(("words", "params"), [
    ("", {}),
    ("--size=7", {"size": 7}),
    ("--text=a --text=b --device=gpu", {"texts": ("a", "b")}),
])  # fmt: skip
def test_options_of_another_struct_are_there_if_they_were_given(
    words: str, params: dict[str, Any]
) -> None:
    seen: list[Nesting] = []
    result = CliRunner().invoke(spec_command(Nesting)(seen.append), words.split())
    assert result.exit_code == 0, result.output
    assert seen == [Nesting(params=params, device="gpu" if "gpu" in words else "cpu")]


def test_help_lists_options_of_a_class_before_those_of_its_base_and_of_other_structs() -> None:
    text = CliRunner().invoke(spec_command(Nesting)(print), ["--help"]).output
    positions = [text.index(word) for word in ("--model", "--device", "--size", "--text")]
    assert positions == sorted(positions)
    assert "--left-out" not in text and "--hidden" not in text


def test_option_of_one_value_that_is_given_twice_is_a_usage_error() -> None:
    words = ["--model=a", "--length", "16", "--length=20"]
    result = CliRunner().invoke(spec_command(Example)(print), words)
    assert result.exit_code == 2
    assert result.stderr.endswith("Error: --length: may be given only once\n")
