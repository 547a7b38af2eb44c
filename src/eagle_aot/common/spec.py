"""Structs whose fields are the options of a command.

A field is written once, with its type, its default and its help:

    class BatchSpec(msgspec.Struct, kw_only=True, frozen=True):
        batch_size: Annotated[int, Option("Prompts that are decoded in parallel.", least=1)] = 1

`spec_command` makes the command's options from the fields, and its arguments from required paths.
`check_fields` holds values from Python to the same types and ranges, and `recorded` is what a
manifest keeps of them.
"""

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
import msgspec
from click.core import ParameterSource

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.common.text import nearest

S = TypeVar("S", bound=msgspec.Struct)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Option:
    """What a field's annotation says in addition to its type.

    `group` is the heading in --help. `flag` is the option where it is not the field's name; the
    flag of a bool that is True by default sets it to False. Numbers are between `least` and `most`,
    both included. A tuple is one word with commas where `commas` is set, else the option may be
    repeated. `parse` reads the word of an option that has a syntax of
    its own, and raises ValueError with what was expected. `recorded` is False for a field that a
    manifest omits because it does not change the artifact, `shown` for one without an option.
    """

    help: str
    group: str = "Options"
    metavar: str | None = None
    flag: str | None = None
    least: float | None = None
    most: float | None = None
    commas: bool = False
    parse: Callable[[str], Any] | None = None
    recorded: bool = True
    shown: bool = True


@dataclass(frozen=True, slots=True)
class OptionsOf:
    """Annotates a dict in a struct: the command also has the options of `spec`, except those of the
    fields `without`, and the dict holds those that were given, by field."""

    spec: type[msgspec.Struct]
    without: tuple[str, ...] = ()

    @property
    def fields(self) -> list["Field"]:
        """The fields of `spec` that are options of the command."""
        fields = spec_fields(self.spec)
        return [f for f in fields if f.option.shown and f.name not in self.without]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct: its name, its type without None, its default and its `Option`.

    `optional` says whether its value may be None.
    """

    name: str
    type: Any
    optional: bool
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal, empty for another type."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()


@cache
def spec_fields(spec: type[msgspec.Struct]) -> tuple[Field, ...]:
    """The fields that carry an `Option`, in the order in which they are written; those of a base
    class come last."""
    options = _annotations(spec, Option)
    infos = {info.name: info for info in msgspec.structs.fields(spec)}
    return tuple(_field(infos[name], type_, option) for name, (type_, option) in options.items())


def _annotations(spec: type[msgspec.Struct], kind: type[A]) -> dict[str, tuple[Any, A]]:
    """The types of fields with an annotation of that kind, and the annotation, by field."""
    hints = get_type_hints(spec, include_extras=True)
    names = (name for cls in spec.__mro__ for name in inspect.get_annotations(cls))
    return {
        name: (hint.__origin__, annotation)
        for name in dict.fromkeys(names)
        if get_origin(hint := hints[name]) is Annotated
        for annotation in hint.__metadata__
        if isinstance(annotation, kind)
    }


def _field(info: msgspec.structs.FieldInfo, type_: Any, option: Option) -> Field:
    members = get_args(type_) if get_origin(type_) in (Union, types.UnionType) else (type_,)
    kinds = tuple(member for member in members if member is not type(None))
    if info.default_factory is not msgspec.NODEFAULT:
        default = info.default_factory()
    else:
        default = info.default
    return Field(info.name, Union[kinds], len(kinds) < len(members), default, option)  # noqa: UP007


def check_fields(spec: msgspec.Struct, *, by_flag: bool = True) -> None:
    """Raise SettingError for a value that its option would not take: call it in __post_init__.

    The error names the option, or the field if not `by_flag`.
    """
    for field in spec_fields(type(spec)):
        value = getattr(spec, field.name)
        if value is None and field.optional:
            continue
        name = field.flag if by_flag else field.name
        if field.choices and value not in field.choices:
            near = nearest(str(value), field.choices)
            raise SettingError(f"{name} {value}: must be one of {', '.join(field.choices)}{near}")
        if field.type in (int, float):
            check_number(name, value, field.type, field.option.least, field.option.most)


def check_number(
    name: str, value: Any, kind: type, least: float | None = None, most: float | None = None
) -> None:
    """Raise SettingError unless a value is of `kind`, int or float, and from `least` to `most`."""
    kinds = int if kind is int else (int, float)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    low = least is None or (is_number and value >= least)
    high = most is None or (is_number and value <= most)
    if is_number and low and high:
        return
    words = "a whole number" if kind is int else "a number"
    lowest, highest = (f"{b:g}" if isinstance(b, float) else str(b) for b in (least, most))
    if most is not None:
        words += f" from {lowest} to {highest}" if least is not None else f", at most {highest}"
    elif least is not None:
        words += f", at least {lowest}"
    raise SettingError(f"{name} {value}: must be {words}")


def recorded(spec: msgspec.Struct) -> dict[str, Any]:
    """Return the values that a manifest records, by field."""
    return {f.name: getattr(spec, f.name) for f in spec_fields(type(spec)) if f.option.recorded}


def spec_command(spec: type[S]) -> Callable[[Callable[[S], None]], click.Command]:
    """A decorator: makes a command of a function of the struct, with the struct's options. Its
    arguments are the required paths without an `Option`."""

    def decorate(body: Callable[[S], None]) -> click.Command:
        @wraps(body)
        def run(**values: Any) -> None:
            source = click.get_current_context().get_parameter_source
            for name, (_, nested) in _annotations(spec, OptionsOf).items():
                options = {field.name: values.pop(field.name) for field in nested.fields}
                keys = [key for key in options if source(key) is ParameterSource.COMMANDLINE]
                values[name] = {key: options[key] for key in keys}
            body(spec(**values))

        command = eagle_command(run)
        command.params[:0] = [*spec_arguments(spec), *spec_options(spec)]
        return command

    return decorate


def spec_arguments(spec: type[msgspec.Struct]) -> list[click.Argument]:
    """The click arguments of a struct, those of a base class first."""
    hints = get_type_hints(spec, include_extras=True)
    names = [f.name for f in msgspec.structs.fields(spec) if f.required and hints[f.name] is Path]
    return [click.Argument([name], type=click.Path(path_type=Path)) for name in names]


def spec_options(spec: type[msgspec.Struct]) -> list[click.Option]:
    """The click options of a struct, and of those that it names with `OptionsOf`."""
    nested = (field for _, (_, n) in _annotations(spec, OptionsOf).items() for field in n.fields)
    shown = (field for field in spec_fields(spec) if field.option.shown)
    return [_click_option(field) for field in (*shown, *nested)]


def _click_option(field: Field) -> click.Option:
    option = field.option
    words: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if field.type is bool and not field.optional:
        words |= {"is_flag": True, "flag_value": not field.default, "default": field.default}
        return _grouped(option, [field.flag, field.name], words)
    if field.type is bool:
        words |= {"default": None}
        return _grouped(option, [f"{field.flag}/--no-{field.flag[2:]}", field.name], words)
    if get_origin(field.type) is tuple and not option.commas:
        words |= {"multiple": True}
    elif option.commas or option.parse:
        words |= {"callback": _parsed(field)}
    words["type"] = _click_type(field)
    is_word = option.commas or field.choices or field.type in (int, float, str)
    words["show_default"] = bool(is_word and field.default not in (None, (), msgspec.NODEFAULT))
    if field.default is msgspec.NODEFAULT:
        words["required"] = True
    else:
        words["default"] = field.default
    return _grouped(option, [field.flag, field.name], words)


def _grouped(option: Option, names: list[str], words: dict[str, Any]) -> click.Option:
    made = click.Option(names, **words)
    made.group = option.group  # type: ignore[attr-defined]  # Command.format_options reads it
    return made


class Choice(click.Choice[str]):
    """A choice whose error names the most similar value."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        message = super().get_invalid_choice_message(value, ctx).removesuffix(".")
        return message + nearest(str(value), self.choices)


def _click_type(field: Field) -> Any:
    option = field.option
    if option.parse or option.commas:
        return click.UNPROCESSED  # a callback parses the word; a default is a value already
    if field.choices:
        return Choice(field.choices)
    kind = get_args(field.type)[0] if get_origin(field.type) is tuple else field.type
    if kind is Path:
        return click.Path(path_type=Path)
    if kind is int and (option.least, option.most) != (None, None):
        return click.IntRange(option.least, option.most)  # type: ignore[arg-type]
    return kind


Callback = Callable[[click.Context, click.Parameter, Any], Any]


def _parsed(field: Field) -> Callback:
    kind = get_args(field.type)[0] if field.option.commas else str

    def read(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            if field.option.parse:
                return field.option.parse(value)
            return tuple(kind(part) for part in value.split(","))
        except ValueError as error:
            expected = str(error) if field.option.parse else "expected values and commas"
            raise click.BadParameter(f"{value!r}: {expected}") from error

    return read
