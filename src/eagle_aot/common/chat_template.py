"""Chat templates, rendered by jinja2 as transformers renders them.

A template is a program that others wrote: it runs in jinja2's sandbox, with the filters, functions
and tags that transformers documents for templates. It is bounded: in the number of its steps, which
are passes of loops and calls of macros, and in the size of what it adds, multiplies and prints. So
a template ends in any request as it did in the first one, whose memory and time a process of its
own bounds (`tokenizer_probe`). Import this module only where a template is rendered: jinja2 is not
needed for token ids.
"""

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_TEMPLATE = 1 << 20
"""Characters of a template; published ones have up to 30,000."""
MAX_STEPS = 1 << 16
MAX_SIZE = 1 << 24
"""Characters or elements of one value, and characters of a conversation."""
MAX_BITS = 1 << 12
"""Of a number."""
STEPS = "steps taken"
"""The count of steps in a context: templates have no name with a space."""
WIDE = re.compile(r"%[^%a-zA-Z]*(\d{5}|\*)")
"""Matches a directive of the operator % that may pad its text to any width."""
N = TypeVar("N", nodes.For, nodes.Macro, nodes.CallBlock)


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
        environment.filters["tojson"] = tojson
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
        for part in self._template.generate(values | {STEPS: [0]}):
            size += len(part)
            check_size("the text of a chat template", size)
            parts.append(part)
        return "".join(parts)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that bounds operators, and counts steps for `CountSteps`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    @pass_context
    def count_step(self, context: Context) -> None:
        """Count a step. Raises SecurityError after too many."""
        steps = context.parent[STEPS]
        steps[0] += 1
        check_size("steps of a chat template", steps[0], MAX_STEPS)

    def join_texts(self, *parts: Any) -> str:
        """Return what the operator ~ returns."""
        texts = list(map(str, parts))
        check_size("a text of a chat template", sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator. Raises SecurityError for a result that is too large."""
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            check_size("a value of a chat template", len(left) + len(right))
        if operator == "*":
            for value, factor in ((left, right), (right, left)):
                if hasattr(value, "__len__") and isinstance(factor, int):
                    check_size("a value of a chat template", len(value) * factor)
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (right if operator == "**" else 1)
            check_size("bits of a number of a chat template", bits, MAX_BITS)
        if operator == "%" and isinstance(left, str) and WIDE.search(left):
            raise SecurityError(f"a chat template formats a text of any width: {left[:40]!r}")
        return super().call_binop(context, operator, left, right)


class CountSteps(NodeTransformer):
    """Adds the counting of a step to loops and macros, and bounds the operator ~."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        return self._counted(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        return self._counted(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        return self._counted(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return call_environment("join_texts", node.nodes, node.lineno)

    def _counted(self, node: N) -> N:
        self.generic_visit(node)
        step = nodes.ExprStmt(call_environment("count_step", [], node.lineno), lineno=node.lineno)
        node.body.insert(0, step)
        return node


def call_environment(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    """Return a call of a method of `BoundedEnvironment`."""
    function = nodes.EnvironmentAttribute(method)
    return nodes.Call(function, arguments, [], None, None, lineno=line)


def check_size(name: str, size: int, most: int = MAX_SIZE) -> None:
    """Raise SecurityError for a size above `most`."""
    if size > most:
        raise SecurityError(f"{name}: {size} is more than {most}")


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
