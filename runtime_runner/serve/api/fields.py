"""What the names in a request's body mean, before its values are checked.

A value that is null, or requests what happens anyway, is absent. A name of another server is read
as the API's own. A name that would change the text and cannot be obeyed is refused. Any other
unknown name is left out with a warning, or refused by a server that is strict.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from eagle_aot.common.structs import describe
from eagle_aot.common.text import nearest, one_line
from eagle_aot.runtime_runner.sampling.parameters import MIN_TEMPERATURE
from eagle_aot.runtime_runner.serve.api.errors import ApiError
from eagle_aot.runtime_runner.serve.api.messages import MAX_MESSAGES

if TYPE_CHECKING:
    from typing_extensions import TypeIs

ALIASES = {
    "max_completion_tokens": "max_tokens",  # in completions
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens",
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_grammar": "structured_outputs.grammar",
    "guided_choice": "structured_outputs.choice",
    "json_schema": "structured_outputs.json",
    "regex": "structured_outputs.regex",
    "grammar": "structured_outputs.grammar",
    "ebnf": "structured_outputs.grammar",
}
"""Names that vLLM, SGLang and llama.cpp have for parameters; a point separates nested names."""
PART_TYPES = {"input_text": "text", "output_text": "text"}
"""The types of parts of a message in OpenAI's newer API."""
MESSAGE = "message"
"""The type of an item of that API that has none."""
ABSENT: dict[str, tuple[Any, ...]] = {
    "seed": (-1,),
    "stop": ("",),
    "logprobs": (False, []),
    "priority": (0,),
    "store": (False,),
    "tools": ([],),
}
"""Values of names that count as null."""
REFUSED: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (),
    "audio": (),
    "background": (False,),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "conversation": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "echo": (False,),  # in chats
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "logits_processors": ([],),
    "lora": ([],),
    "mirostat": (0,),
    "modalities": (["text"],),
    "n_probs": (0,),
    "no_repeat_ngram_size": (0,),
    "previous_response_id": (),
    "prompt_logprobs": (),
    "repeat_last_n": (-1,),
    "return_tokens_as_token_ids": (False,),
    "samplers": (),
    "skip_special_tokens": (True,),
    "stop_regex": ("", []),
    "suffix": ("",),
    "tfs_z": (1,),
    "tool_choice": ("none", "auto"),
    "tools": (),
    "top_a": (0,),
    "truncation": ("disabled",),
    "top_n_sigma": (-1,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}
"""Names that would change an answer and cannot be obeyed, with values that change nothing."""
IGNORED = {
    *("user", "metadata", "service_tier", "safety_identifier", "include_obfuscation"),
    *("prompt_cache_key", "prompt_cache_retention", "prediction", "parallel_tool_calls"),
    *("cache_control", "annotations", "cache_prompt", "id_slot", "n_keep"),
    *("disable_fallback", "disable_any_whitespace", "guided_decoding_backend"),
    *("spaces_between_special_tokens", "length_penalty"),
    *("mirostat_tau", "mirostat_eta", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("dry_sequence_breakers", "xtc_threshold", "dynatemp_exponent", "early_stopping"),
}
"""Names that change no answer: hints, and what belongs to names of `REFUSED`."""
FORM = "structured_outputs."
"""The path of an object whose unknown names would change an answer, too."""
MAX_NAMES = 1024
"""The limit of names in an object."""
MOST_LINES = 8
LONGEST_NAME = 64
"""Limits of what an answer and the log say of names, which clients choose."""


@dataclass(slots=True)
class NameLines:
    """Lines about names, each name once, the first `MOST_LINES` of them."""

    lines: dict[str, str] = field(default_factory=dict)
    """By the name with its path."""
    has_others: bool = False

    def add(self, path: str, what: str, names: Iterable[str] = ()) -> None:
        """Add a line that begins with a path, and names the most similar of `names`."""
        if path in self.lines:
            return
        if len(self.lines) == MOST_LINES:
            self.has_others = True
            return
        name = path.rpartition(".")[2]
        near = nearest(name, names) if len(name) <= LONGEST_NAME else ""
        self.lines[path] = f"{shortened(path)}: {what}{near}"

    def __iter__(self) -> Iterator[str]:
        yield from self.lines.values()
        if self.has_others:
            yield "and other names"


def shortened(name: str) -> str:
    """Return a name in one line, cut off where it is long."""
    name = one_line(name[: 4 * LONGEST_NAME])
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."


@dataclass(slots=True)
class FieldReader:
    """Gives the names in one body their meaning, in place."""

    strict: bool
    warnings: NameLines = field(default_factory=NameLines)
    refused: NameLines = field(default_factory=NameLines)
    unknown: NameLines = field(default_factory=NameLines)

    def read(self, body: dict[str, Any], kind: type[msgspec.Struct]) -> None:
        """Leave in a body only the names of its struct, and none that is null. Raises ApiError for
        names that are refused."""
        fields = fields_of(kind)
        for name in [*body]:
            if name not in fields and name in ALIASES:
                self._move(body, name, ALIASES[name])
        self._read(body, kind, "")
        self._read_temperature(body)
        code = "unsupported_parameter" if self.refused.lines else "unknown_parameter"
        if lines := [*self.refused, *self.unknown]:
            first = next(iter(self.refused.lines or self.unknown.lines))
            raise ApiError(400, "; ".join(lines), code, shortened(first))

    def _move(self, body: dict[str, Any], name: str, alias: str) -> None:
        value = body.pop(name)
        if is_absent(alias, value):
            return
        outer, _, inner = alias.rpartition(".")
        if outer and body.get(outer) is None:
            body[outer] = {}
        target = body[outer] if outer else body
        if not isinstance(target, dict):
            return  # which is refused as a value of a wrong type
        if target.get(inner) is not None and target[inner] != value:
            self.refused.add(name, f"the same as {alias}: leave out one")
        target[inner] = value

    def _read(self, body: dict[str, Any], kind: type[msgspec.Struct], path: str) -> None:
        """Read an object at a `path`, which is empty or ends with a point."""
        if len(body) > MAX_NAMES:
            where = path.rstrip(".") or "the body"
            raise ApiError(400, f"{where}: {len(body)} names, {MAX_NAMES} at most")
        fields = fields_of(kind)
        for name in [*body]:
            value = body[name]
            if is_absent(name, value) or name not in fields:
                del body[name]
                if not is_absent(name, value):
                    self._read_unknown(path, name, value, body, fields)
            elif structs := fields[name]:
                # A longer list is refused in any case.
                for item in value[:MAX_MESSAGES] if isinstance(value, list) else [value]:
                    if isinstance(item, dict) and (struct := struct_of(item, structs)):
                        self._read(item, struct, f"{path}{name}.")

    def _read_unknown(
        self,
        path: str,
        name: str,
        value: Any,
        body: Mapping[str, Any],
        fields: Mapping[str, tuple[type[msgspec.Struct], ...]],
    ) -> None:
        if name in IGNORED or (not path and value in REFUSED.get(name, ())):
            return
        if name == "repeat_last_n" and body.get("repetition_penalty") in (None, 1):
            return  # it says what is not penalized
        if path == FORM or (not path and name in REFUSED):
            self.refused.add(path + name, "cannot be done here: leave it out")
            return
        if self.strict:
            self.unknown.add(path + name, "no such parameter here", fields)
        else:
            self.warnings.add(path + name, "not known here, ignored", fields)

    def _read_temperature(self, body: dict[str, Any]) -> None:
        """A temperature so low that the noise could not tell it from 0 is 0, as is a top_p of 0."""
        temperature = body.get("temperature")
        if is_number(temperature) and 0 < temperature < MIN_TEMPERATURE:
            self.warnings.add("temperature", f"0 in place of {temperature:.9g}")
            body["temperature"] = 0
        if is_number(body.get("top_p")) and body["top_p"] == 0:
            del body["top_p"]
            body["temperature"] = 0


def is_absent(name: str, value: Any) -> bool:
    """Return whether a value is the same as none."""
    return value is None or any(type(value) is type(v) and value == v for v in ABSENT.get(name, ()))


def is_number(value: Any) -> "TypeIs[int | float]":
    """Return whether a value is a number in JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@cache
def fields_of(kind: type[msgspec.Struct]) -> dict[str, tuple[type[msgspec.Struct], ...]]:
    """Return the names of a struct's fields, each with the structs that its value may be, or that
    may be items of its value."""
    describe(kind)
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    names = {each.encode_name: tuple(structs_in(each.type)) for each in info.fields}
    return names if info.tag_field is None else {info.tag_field: (), **names}


def structs_in(info: inspect.Type) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs in unions and lists."""
    if isinstance(info, inspect.StructType):
        yield info.cls
    elif isinstance(info, inspect.UnionType):
        for option in info.types:
            yield from structs_in(option)
    elif isinstance(info, inspect.ListType):
        yield from structs_in(info.item_type)
    elif isinstance(info, inspect.Metadata):
        yield from structs_in(info.type)


def struct_of(
    item: dict[str, Any], structs: tuple[type[msgspec.Struct], ...]
) -> type[msgspec.Struct] | None:
    """Return the struct that an object is by its tag, None where none is."""
    for struct in structs:
        name, tag = struct.__struct_config__.tag_field, struct.__struct_config__.tag
        if name is None:
            return struct
        sent = item.get(name, MESSAGE)
        if isinstance(sent, str) and PART_TYPES.get(sent, sent) == tag:
            item[name] = tag
            return struct
    return None
