"""The bounds of chat templates: their steps, their values, and all that they read and make.

Each value has at most `MAX_SIZE` characters as text. So a filter, a method or a comparison takes a
bounded time, and its cost is the size of what it reads and returns: `Costs` bounds the sum.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from string import Formatter
from types import BuiltinMethodType
from typing import Any, TypeVar

from jinja2 import nodes, pass_context, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.filters import do_indent, sync_do_join
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1 << 16
MAX_SIZE = 1 << 24
"""Characters of one value, and of a conversation."""
MAX_VALUES = 1 << 18
"""Values in a list, a dict or a tuple, and in what it contains."""
MAX_COST = 1 << 29
"""Characters that are read and made; a value in a list or a dict counts as 16."""
MAX_BITS = 1 << 12
"""Of a number."""
MAX_TUPLE = 1 << 12
"""Values in a tuple, which is hashed anew in each lookup."""
MAX_INDENT = 64
CALL_COST = 128
"""The cost of each call of a filter, a function or a method."""
COSTS = "costs so far"
"""The name of `Costs` in a context: templates have no name with a space."""
WIDE = re.compile(r"%[^%a-zA-Z]*(\d{3}|\*)")
"""Matches a directive of the operator % that may pad its text to any width."""
FILTERS = frozenset((
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "forceescape", "format", "groupby", "indent", "int", "items", "join", "last",
    "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse",
    "round", "safe", "select", "selectattr", "sort", "string", "striptags", "title", "tojson",
    "trim", "unique", "upper",
))  # fmt: skip
READ_LITTLE = frozenset((
    "attr", "count", "d", "default", "first", "items", "last", "length", "safe",
))  # fmt: skip
"""Filters whose time does not depend on the size of what they get."""
COMPARISONS = frozenset((
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le",
    "lessthan", "lt", "ne",
))  # fmt: skip
"""Tests that compare values."""
METHODS = frozenset((
    "capitalize", "casefold", "copy", "count", "endswith", "find", "format", "get", "index",
    "isalnum", "isalpha", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle",
    "isupper", "items", "join", "keys", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "swapcase", "title", "upper", "values",
))  # fmt: skip
"""Of texts, lists and dicts."""
COLLECTIONS: Any = list, tuple, type({}.keys()), type({}.values()), type({}.items())
N = TypeVar("N", nodes.For, nodes.Macro, nodes.CallBlock)


@dataclass(slots=True)
class Costs:
    """What one conversation has taken."""

    steps: int = 0
    total: int = 0

    def add(self, cost: int) -> None:
        """Add a cost. Raises SecurityError where the sum is too large."""
        self.total += cost
        check_size("what a chat template reads and makes", self.total, MAX_COST)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that bounds operators, filters, comparisons, calls and output.

    `CountSteps` adds calls of its methods to a template.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=pass_context(charge), **options)
        del self.globals["lipsum"]  # it makes any number of words
        filters: dict[str, Any] = dict(self.filters)
        filters |= {"replace": replace, "join": join, "format": percent, "indent": indent}
        self.filters = {}
        for name in FILTERS & filters.keys():
            self.use_filter(name, filters[name])
        tests: dict[str, Any] = self.tests
        tests |= {name: bounded(tests[name]) for name in COMPARISONS & tests.keys()}

    def use_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter, with bounds."""
        self.filters[name] = bounded(function, reads_all=name not in READ_LITTLE)

    @pass_context
    def count_step(self, context: Context, length: int) -> None:
        """Count a step that prints `length` fixed characters. Raises SecurityError after too
        many."""
        costs: Costs = context.parent[COSTS]
        costs.steps += 1
        check_size("steps of a chat template", costs.steps, MAX_STEPS)
        costs.add(length)

    @pass_context
    def charge(self, context: Context, value: Any) -> Any:
        """Return a value that a template makes or reads, as `charge` does."""
        return charge(context, value)

    @pass_context
    def join_texts(self, context: Context, *parts: Any) -> str:
        """Return what the operator ~ returns."""
        texts = [str(charge(context, part)) for part in parts]
        check_size("a text of a chat template", sum(map(len, texts)))
        return str(charge(context, "".join(texts)))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator. Raises SecurityError for a result that is too large."""
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            most = MAX_SIZE if isinstance(left, str) else MAX_VALUES
            check_size("a value of a chat template", len(left) + len(right), most)
        if operator == "*":
            for value, factor in ((left, right), (right, left)):
                if hasattr(value, "__len__") and isinstance(factor, int):
                    most = MAX_SIZE if isinstance(value, str) else MAX_VALUES
                    check_size("a value of a chat template", len(value) * factor, most)
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (right if operator == "**" else 1)
            check_size("bits of a number of a chat template", bits, MAX_BITS)
        if operator == "%" and isinstance(left, str):
            check_directives(left, right)
        return charge(context, super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function or a method. Raises SecurityError for a method that is not in `METHODS`,
        and for a result that is too large."""
        __context.parent[COSTS].add(CALL_COST)
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        if isinstance(method, BuiltinMethodType):
            check_method(__context, method, args, kwargs)
        return charge(__context, super().call(__context, __obj, *args, **kwargs))


def check_method(
    context: Context, method: BuiltinMethodType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise SecurityError for a call of a method that may return too much, or is not known."""
    name = method.__name__
    owner: Any = method.__self__
    if name not in METHODS:
        raise SecurityError(f"a chat template calls {name}(), which is not supported here")
    if isinstance(owner, str) or name in ("index", "count"):
        charge(context, owner)
    for argument in args:
        if name != "get":
            charge(context, argument)
    if name == "replace":
        check_replace(owner, *args[:2])
    if name == "join":
        check_join(owner, *args)
    if name == "format":
        fields = list(Formatter().parse(owner))
        if any(spec and re.search(r"\d{3}|\{", spec) for _, _, spec, _ in fields):
            raise SecurityError(f"a chat template formats a text of any width: {owner[:40]!r}")
        check_size("a text of a chat template", len(fields) * measure((args, kwargs))[0])


def bounded(function: Callable[..., Any], reads_all: bool = True) -> Callable[..., Any]:
    """Return a filter or a test that adds the cost of its arguments, if it `reads_all` of them,
    and of its result."""
    passed = getattr(function, "jinja_pass_arg", None)  # what jinja2 passes as first argument

    @pass_context
    def call(context: Context, *args: Any, **kwargs: Any) -> Any:
        context.parent[COSTS].add(CALL_COST)
        if reads_all:
            for argument in (*args, *kwargs.values()):
                charge(context, argument)
        sources = {
            "context": context, "eval_context": context.eval_ctx, "environment": context.environment
        }  # fmt: skip
        first = () if passed is None else (sources[passed.name],)
        return charge(context, function(*first, *args, **kwargs))

    return call


def charge(context: Context, value: Any) -> Any:
    """Return a value, and add its cost. Raises SecurityError where it is too large."""
    characters, values = measure(value)
    context.parent[COSTS].add(characters if isinstance(value, str) else 16 * values)
    return value


def measure(value: Any, spaces: int = 0) -> tuple[int, int]:
    """Return about how many characters a value has as text, and how many values are in it. JSON
    with an indent has `spaces` more at each level. Raises SecurityError for more than `MAX_SIZE`
    and `MAX_VALUES`."""
    if isinstance(value, str):
        check_size("a value of a chat template", len(value))
        return len(value), 1
    characters = values = 0
    remaining = [(value, 0)]
    while remaining:
        item, level = remaining.pop()
        parts = parts_of(item)
        characters += spaces * level
        values += 1
        if isinstance(item, str):
            characters += len(item)
        elif isinstance(item, int):
            characters += item.bit_length() // 3
        elif isinstance(item, range):
            values += len(item)
        check_size("values of a chat template", values - 1 + len(parts), MAX_VALUES)
        if isinstance(item, tuple) and len(parts) > MAX_TUPLE:
            raise SecurityError(f"a tuple of a chat template has more than {MAX_TUPLE} values")
        kinds = set(map(type, parts))
        if kinds <= {str} and parts:
            characters += sum(map(len, parts)) + spaces * (level + 1) * len(parts)
            values += len(parts)
        elif kinds <= {int, bool}:
            characters += sum(map(int.bit_length, parts)) // 3 + spaces * (level + 1) * len(parts)
            values += len(parts)
        else:
            remaining += [(part, level + 1) for part in parts]
        check_size("values of a chat template", values - 1, MAX_VALUES)
        check_size("a value of a chat template", characters)
    return characters, values


def parts_of(value: Any) -> list[Any]:
    """Return the values in a collection, a dict with its keys, or a namespace."""
    if isinstance(value, Namespace):
        value = value._Namespace__attrs
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, COLLECTIONS) else []


def check_directives(text: str, values: Any = ()) -> None:
    """Raise SecurityError where the directives of the operator % make too long a text."""
    if WIDE.search(text):
        raise SecurityError(f"a chat template formats a text of any width: {text[:40]!r}")
    check_size("a text of a chat template", text.count("%") * measure(values)[0])


def check_replace(text: str, old: str, new: str) -> None:
    """Raise SecurityError where a replacement makes too long a text."""
    check_size("a text of a chat template", len(text) + text.count(old) * len(new))


def check_join(separator: str, texts: Any) -> None:
    """Raise SecurityError where texts, joined, are too long."""
    if not isinstance(texts, str) and not isinstance(texts, COLLECTIONS):
        raise SecurityError("a chat template joins something that is no list")
    characters = measure(texts)[0] + len(texts) * len(separator)
    check_size("a text of a chat template", characters)


def replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    """Return what jinja2's filter returns where nothing is escaped."""
    check_replace(str(text), str(old), str(new))
    return str(text).replace(str(old), str(new), -1 if count is None else count)


@pass_eval_context
def join(context: EvalContext, values: Any, d: str = "", attribute: str | int | None = None) -> str:
    """Return what jinja2's filter returns. Raises SecurityError for too long a text."""
    parts = list(values)
    check_join(str(d), parts)
    return sync_do_join(context, parts, d, attribute)


def percent(form: Any, *args: Any, **kwargs: Any) -> str:
    """Return what jinja2's filter `format` returns."""
    values = kwargs or args
    check_directives(str(form), values)
    return str(form) % values


def indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Return what jinja2's filter returns. Raises SecurityError for a wide one."""
    spaces = len(width) if isinstance(width, str) else width
    check_size("an indent of a chat template", spaces, MAX_INDENT)
    return do_indent(text, width, first, blank)


class CountSteps(NodeTransformer):
    """Adds the counting of a step to loops and macros, and bounds the operator ~, comparisons,
    slices and collections."""

    def _counted(self, node: N) -> N:
        self.generic_visit(node)
        length = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        count = call_environment("count_step", [nodes.Const(length)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(count, lineno=node.lineno))
        return node

    def _charged(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return call_environment("charge", [node], node.lineno)

    visit_For = visit_Macro = visit_CallBlock = _counted
    visit_List = visit_Dict = _charged

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return call_environment("join_texts", node.nodes, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        for operand in node.ops:
            operand.expr = call_environment("charge", [operand.expr], node.lineno)
        node.expr = call_environment("charge", [node.expr], node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = call_environment("charge", [node.node], node.lineno)
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return node if node.ctx == "store" else self._charged(node)


def call_environment(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    """Return a call of a method of `BoundedEnvironment`."""
    function = nodes.EnvironmentAttribute(method)
    return nodes.Call(function, arguments, [], None, None, lineno=line)


def check_size(name: str, size: int, most: int = MAX_SIZE) -> None:
    """Raise SecurityError for a size above `most`."""
    if size > most:
        raise SecurityError(f"{name}: {size} is more than {most}")
