"""Chat templates, rendered by jinja2 as transformers renders them.

A template is a program that others wrote: it runs in jinja2's sandbox, with the filters, functions,
methods and tags of published templates. `BoundedEnvironment` bounds its steps, the size of each
value, and the sum of the sizes of all values that it makes or reads. So a template ends in any
request as it did in the first one, whose memory and time a process of its own bounds
(`tokenizer_probe`). Import this module only where a template is rendered: jinja2 is not needed for
token ids.
"""

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.utils import Namespace

from eagle_aot.common.errors import PromptError
from eagle_aot.common.templates.bounds import (
    COSTS,
    MAX_INDENT,
    BoundedEnvironment,
    Costs,
    CountSteps,
    check_directives,
    check_size,
    measure,
)

MAX_TEMPLATE = 1 << 20
"""Characters of a template; published ones have up to 30,000."""


class ChatTemplate:
    """A template that renders conversations."""

    def __init__(self, text: str) -> None:
        """Raises TemplateError for a text that is no template, or is too long."""
        check_size("a chat template", len(text), MAX_TEMPLATE)
        environment = BoundedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        environment.use_filter("tojson", tojson)
        environment.globals |= {
            "raise_exception": raise_exception,
            "strftime_now": strftime_now,
            "dict": SafeDict(),
            "namespace": SafeNamespace,
        }
        counted = CountSteps().visit(environment.parse(text))
        counted.set_environment(environment)
        self._template = environment.from_string(counted)

    def render(self, **values: Any) -> str:
        """Return the text of a conversation. Raises what the template raises, and SecurityError
        where it takes too many steps or makes too much text."""
        parts, size = list[str](), 0
        for part in self._template.generate(values | {COSTS: Costs()}):
            size += len(part)
            check_size("the text of a chat template", size)
            parts.append(part)
        return "".join(parts)


class GenerationTag(Extension):
    """`{% generation %}`, which marks an answer for training: its text is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """Return a block that renders what stands between the tags."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


class SafeDict:
    """`dict` without the attributes of a class."""

    def __call__(self, *pairs: Any, **values: Any) -> dict[Any, Any]:
        return dict(*pairs, **values)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class SafeNamespace(Namespace):
    """A namespace without names that begin with an underscore: Python's internals have such."""

    def __init__(self, *pairs: Any, **values: Any) -> None:
        attributes = dict(*pairs, **values)
        for name in attributes:
            check_public(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        check_public(name)
        super().__setitem__(name, value)


def check_public(name: Any) -> None:
    """Raise SecurityError for a name that begins with an underscore."""
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a template's namespace takes no name with an underscore: {name!r}")


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON; jinja2's own filter would escape the characters of HTML."""
    spaces = len(indent) if isinstance(indent, str) else indent or 0
    check_size("the indent of JSON in a chat template", spaces, MAX_INDENT)
    measure(value, spaces)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def strftime_now(form: str) -> str:
    check_directives(form)
    return datetime.now().strftime(form)


def raise_exception(message: str) -> NoReturn:
    """Let a template refuse a conversation. Raises PromptError."""
    raise PromptError(message)
