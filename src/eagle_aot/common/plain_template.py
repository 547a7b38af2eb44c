"""Chat templates that jinja2 alone renders as transformers does: of text, loops and conditions."""

from typing import Any, NoReturn

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Tokens that a template may name."""

KNOWN = {
    *("messages", "add_generation_prompt", "tools", "documents", "range", "raise_exception"),
    *NAMED,
}
"""All that a plain template reads: transformers has functions of its own behind other names."""

OWN_FILTERS = {"tojson", "map"}
"""A filter that transformers has of its own, and one that may call it by a name in a variable."""


def is_plain_template(text: str) -> bool:
    """Whether a template reads nothing but what is `KNOWN`; one that is none is not plain."""
    from jinja2 import TemplateError, meta, nodes

    bare = environment()
    bare.globals.clear()  # else their names count as declared
    try:
        tree = bare.parse(text)
        names = meta.find_undeclared_variables(tree)
    except (TemplateError, RecursionError):  # for transformers to state
        return False
    filters = {node.name for node in tree.find_all(nodes.Filter)}
    return names <= KNOWN and not filters & OWN_FILTERS


def compiled(text: str) -> Any:
    """A template that can be rendered."""
    return environment().from_string(text)


def environment() -> Any:
    """With the settings that transformers documents for chat templates, in jinja2's sandbox."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    found.globals["raise_exception"] = raise_exception
    return found


def raise_exception(message: str) -> NoReturn:
    """For a template that refuses a conversation. Raises TemplateError."""
    from jinja2 import TemplateError

    raise TemplateError(message)
