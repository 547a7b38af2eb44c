"""Chat templates, rendered by jinja2 as transformers renders them.

A template is a program that others wrote: it runs in jinja2's sandbox, with the filters, functions
and tags that transformers documents for templates. Import this module only where a template is
rendered: jinja2 is not needed for token ids.
"""

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


def compile_template(text: str) -> Template:
    """Return a template to render. Raises TemplateError for a text that is none."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "dict": SafeDict(),
        "namespace": SafeNamespace,
    }
    return environment.from_string(text)


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
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def raise_exception(message: str) -> NoReturn:
    """Let a template refuse a conversation. Raises TemplateError."""
    raise TemplateError(message)
