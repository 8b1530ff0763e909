"""Every field and type of the client's package is honoured, or refused by its name."""

from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import anthropic.types as sdk
import msgspec
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_create_params
from msgspec import Struct

from gateway.anthropic import schema
from gateway.anthropic.unsupported import OPTIONS
from protocol.errors import ErrorCode
from tests.gateway.anthropic.bodies import TOOL, of_assistant, of_user, refusal

IN_HEADERS = {"betas", "user_profile_id", "workspace_id"}
"""Parameters that the client sends as headers, which are ignored."""

PAIRS: list[tuple[Any, type[Struct]]] = [
    (message_create_params.MessageCreateParamsBase, schema.MessagesBody),
    (beta_create_params.MessageCreateParamsBase, schema.MessagesBody),
    (message_count_tokens_params.MessageCountTokensParams, schema.CountBody),
    (sdk.MessageParam.__args__[0], schema.InputMessage),  # type: ignore[attr-defined]
    (sdk.TextBlockParam, schema.TextBlock),
    (sdk.ThinkingBlockParam, schema.ThinkingBlock),
    (sdk.RedactedThinkingBlockParam, schema.RedactedThinkingBlock),
    (sdk.ToolUseBlockParam, schema.ToolUseBlock),
    (sdk.ToolResultBlockParam, schema.ToolResultBlock),
    (sdk.ToolParam, schema.ClientTool),
    (sdk.CacheControlEphemeralParam, schema.CacheBreakpoint),
    (sdk.MetadataParam, schema.RequestMetadata),
    (sdk.ToolChoiceAutoParam, schema.AutoChoice),
    (sdk.ToolChoiceAnyParam, schema.AnyChoice),
    (sdk.ToolChoiceToolParam, schema.NamedChoice),
    (sdk.ToolChoiceNoneParam, schema.NoneChoice),
    (sdk.ThinkingConfigEnabledParam, schema.ThinkingEnabled),
    (sdk.ThinkingConfigDisabledParam, schema.ThinkingDisabled),
    (sdk.ThinkingConfigAdaptiveParam, schema.ThinkingAdaptive),
    (sdk.OutputConfigParam, schema.OutputConfig),
    (sdk.JSONOutputFormatParam, schema.JsonFormat),
]


@pytest.mark.parametrize(
    ("given", "taken"), PAIRS, ids=[f"{given.__name__}-{taken.__name__}" for given, taken in PAIRS]
)
def test_every_field_is_known(given: Any, taken: type[Struct]) -> None:
    tag = {taken.__struct_config__.tag_field} - {None}
    known = {*taken.__struct_fields__, *tag} | IN_HEADERS
    assert set(given.__annotations__) - known == set()


def types_of(union: Any) -> Iterator[tuple[str, Any]]:
    """The values of `type` of the members of a union, with the member."""
    if get_origin(union) is Union:
        for member in get_args(union):
            yield from types_of(member)
        return
    annotation: Any = get_type_hints(union).get("type")
    values = get_args(annotation)
    if get_origin(annotation) is Literal:
        yield from ((value, union) for value in values)
    else:  # optional
        yield from ((value, union) for each in values for value in get_args(each))


BLOCKS = sorted({kind for kind, _ in types_of(sdk.ContentBlockParam)})
TAKEN = {str(kind.__struct_config__.tag) for kind in get_args(schema.ContentBlock)}


def test_the_blocks_that_are_taken_are_the_clients() -> None:
    assert set(BLOCKS) > TAKEN
    assert len(BLOCKS) > 10


@pytest.mark.parametrize("kind", sorted(set(BLOCKS) - TAKEN))
def test_a_block_that_is_not_taken_is_refused_by_its_type(kind: str) -> None:
    for messages, at in (
        (of_user({"type": kind, "source": {}}), "messages[0].content[0]"),
        (of_assistant({"type": kind, "x": 1}), "messages[1].content[0]"),
    ):
        error = refusal(messages=messages)
        assert (error.code, error.field) == (ErrorCode.UNSUPPORTED, at)
        assert f"`{kind}`" in error.text


TOOLS = sorted({kind for kind, _ in types_of(sdk.ToolUnionParam)} - {"custom"})


@pytest.mark.parametrize("kind", TOOLS)
def test_a_tool_that_anthropic_defines_is_refused_by_its_type(kind: str) -> None:
    for tool in ({"type": kind}, {"type": kind, "name": "x", "max_uses": 1}, TOOL | {"type": kind}):
        error = refusal(tools=[TOOL, tool])
        assert (error.code, error.field) == (ErrorCode.UNSUPPORTED, "tools[1]")
        assert f"`{kind}`" in error.text


def test_every_option_that_is_refused_is_a_field_of_a_body() -> None:
    structs = [kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    assert set(OPTIONS) <= {name for kind in structs for name in kind.__struct_fields__}
