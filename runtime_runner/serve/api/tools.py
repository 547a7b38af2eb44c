"""Tools in the bodies of requests, and the calls of earlier answers that clients send back."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import FunctionCall, MessageCall
from eagle_aot.runtime_runner.serve.tool_calls.chat_format import CallPolicy
from eagle_aot.runtime_runner.serve.tool_calls.protocol import Function, read_object
from eagle_aot.runtime_runner.serve.tool_calls.schemas import closed, is_deep

MAX_TOOLS, MAX_CALLS = 512, 1024
MAX_CHARACTERS = 4_000_000
NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,128}\Z")]
ToolText = Annotated[str, Meta(max_length=MAX_CHARACTERS)]


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """A function; without `parameters` it takes none. Keywords of a schema that grammars cannot
    express are ignored unless it is `strict`."""

    name: FunctionName
    description: ToolText | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """A tool, which is always a function."""

    function: FunctionDefinition

    @property
    def declared(self) -> dict[str, Any]:
        """The tool as chat templates get it."""
        function = self.function
        declared: dict[str, Any] = {"name": function.name}
        if function.description is not None:
            declared["description"] = function.description
        declared["parameters"] = function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": declared}


class FunctionChoice(msgspec.Struct, kw_only=True):
    """The name of a function."""

    name: FunctionName


class NamedTool(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """The one tool that an answer calls."""

    function: FunctionChoice


class AllowedTools(msgspec.Struct, kw_only=True):
    """Tools that an answer may call, all others being declared to the model alone."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """A choice among some of the tools."""

    allowed_tools: AllowedTools


class CalledFunction(msgspec.Struct, kw_only=True):
    """A call of an earlier answer, with its arguments as JSON."""

    name: FunctionName
    arguments: ToolText | None = None


class CalledTool(msgspec.Struct, kw_only=True):
    """A tool call of an earlier answer."""

    function: CalledFunction
    id: ToolText = ""
    type: Literal["function"] = "function"

    def call(self) -> MessageCall:
        """Return the call with its arguments read, if they are a JSON object."""
        text = self.function.arguments or "{}"
        arguments = read_object(text)
        function: FunctionCall = {
            "name": self.function.name,
            "arguments": text if arguments is None or is_deep(arguments) else arguments,
        }
        return {"id": self.id, "type": "function", "function": function}


Tools = Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedChoice
CalledTools = Annotated[list[CalledTool], Meta(max_length=MAX_CALLS)]


def declared(tools: Sequence[FunctionTool] | None) -> list[dict[str, Any]]:
    """Return tools as chat templates get them."""
    return [tool.declared for tool in tools or ()]


def call_policy(
    tools: Sequence[FunctionTool] | None, choice: ToolChoice | None, parallel: bool | None
) -> CallPolicy | None:
    """Return what an answer may call, None where it calls nothing. Raises SettingError for a choice
    that has no tool, for two tools of one name, and for schemas that are nested too deeply."""
    if any(is_deep(tool.function.parameters) for tool in tools or ()):
        raise SettingError("tools: a schema is nested too deeply")
    functions = [function_of(tool.function) for tool in tools or ()]
    if len({function.name for function in functions}) < len(functions):
        raise SettingError("tools: two functions have the same name")
    mode, chosen = choice, list[NamedTool]()
    if isinstance(choice, NamedTool):
        mode, chosen = "required", [choice]
    elif isinstance(choice, AllowedChoice):
        mode, chosen = choice.allowed_tools.mode, choice.allowed_tools.tools
    names, known = {tool.function.name for tool in chosen}, {each.name for each in functions}
    if unknown := sorted(names - known):
        raise SettingError(f"tool_choice: no tool has the name {unknown[0]}")
    if mode == "required" and not functions:
        raise SettingError("tool_choice required: there are no tools")
    if mode == "none" or not functions:
        return None
    return CallPolicy(
        [function for function in functions if not names or function.name in names],
        required=mode == "required",
        several=parallel is not False and not isinstance(choice, NamedTool),
    )


def function_of(definition: FunctionDefinition) -> Function:
    """Return a function with the schema of its arguments, which are always an object."""
    schema = definition.parameters or NO_PARAMETERS
    if "type" not in schema and "$ref" not in schema:
        schema = {"type": "object", **schema}
    return Function(definition.name, closed(schema), bool(definition.strict))
