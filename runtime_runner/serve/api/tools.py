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
ToolChoice = Literal["none", "auto", "required"] | NamedTool
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
    if isinstance(choice, NamedTool):
        name = choice.function.name
        functions = [function for function in functions if function.name == name]
        if not functions:
            raise SettingError(f"tool_choice: no tool has the name {name}")
    if choice == "required" and not functions:
        raise SettingError("tool_choice required: there are no tools")
    if choice == "none" or not functions:
        return None
    is_named = isinstance(choice, NamedTool)
    return CallPolicy(
        functions,
        required=is_named or choice == "required",
        several=parallel is not False and not is_named,
    )


def function_of(definition: FunctionDefinition) -> Function:
    """Return a function with the schema of its arguments, which are always an object."""
    schema = definition.parameters or NO_PARAMETERS
    if "type" not in schema and "$ref" not in schema:
        schema = {"type": "object", **schema}
    return Function(definition.name, closed(schema), bool(definition.strict))
