"""Syntax of tool calls by model family, as data for grammars: exactly what a model was trained to write.

Markers that are tokens of the model are written out here as text. The names are those of the parsers of tool calls.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParameterSyntax:
    """Parameters that are written one by one: strings as they are, other values as JSON."""

    key_open: str
    key_close: str
    """Between a key and its value."""
    value_close: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """The text of a call: `name_open`, the name, `name_close`, the arguments and `close`."""

    marker: str = ""
    """The beginning of the first call, before which there may be text. Without one, an answer is text or a call."""
    name_open: str
    name_close: str
    close: str = ""
    parameters: ParameterSyntax | None = None
    """The syntax of the arguments; None for a JSON object."""
    section: tuple[str, str] = ("", "")
    """Precedes and follows all calls of an answer."""
    separator: str = ""
    """Between two calls."""
    single: bool = False
    """An answer has one call only."""
    turn: str = ""
    """May precede the first call or the text, if the model has reasoned before."""
    reasoning: tuple[str, str] | None = None
    """Precede and follow a message of reasoning, in a format where the grammar has to allow it."""
    preamble: tuple[str, str] = ("", "")
    """Precede and follow text before a call; empty if text needs no marks."""
    text_open: str = ""
    """Precedes text without calls."""
    needs: str = ""
    """A token that models with this version of the format have."""


CALL_SYNTAX: Mapping[str, tuple[CallSyntax, ...]] = {
    "hermes": (
        CallSyntax(
            marker="<tool_call>",
            name_open='<tool_call>\n{"name": "',
            name_close='", "arguments": ',
            close="}\n</tool_call>",
            separator="\n",
        ),
    ),
    "llama3_json": (CallSyntax(name_open='{"name": "', name_close='", "parameters": ', close="}", single=True),),
    "mistral": (
        CallSyntax(marker="[TOOL_CALLS]", name_open="[TOOL_CALLS]", name_close="[ARGS]", needs="[ARGS]"),
        CallSyntax(
            marker="[TOOL_CALLS]",
            section=("[TOOL_CALLS] [", "]"),
            name_open='{"name": "',
            name_close='", "arguments": ',
            close="}",
            separator=", ",
        ),
    ),
    "granite": (
        CallSyntax(
            marker="<|tool_call|>",
            section=("<|tool_call|>[", "]"),
            name_open='{"name": "',
            name_close='", "arguments": ',
            close="}",
            separator=", ",
        ),
    ),
    "qwen3_coder": (
        CallSyntax(
            marker="<tool_call>",
            name_open="<tool_call>\n<function=",
            name_close=">\n",
            parameters=ParameterSyntax("<parameter=", ">\n", "\n</parameter>\n"),
            close="</function>\n</tool_call>",
            separator="\n",
        ),
    ),
    "glm": (
        CallSyntax(
            marker="<tool_call>",
            name_open="<tool_call>",
            name_close="\n",
            parameters=ParameterSyntax("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
            close="</tool_call>",
            separator="\n",
        ),
    ),
    "minimax_m2": (
        CallSyntax(
            marker="<minimax:tool_call>",
            name_open='<invoke name="',
            name_close='">\n',
            parameters=ParameterSyntax('<parameter name="', '">', "</parameter>\n"),
            close="</invoke>",
            section=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
            separator="\n",
        ),
    ),
    "deepseek_v3": (
        CallSyntax(
            marker="<｜tool▁calls▁begin｜>",
            name_open="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            name_close="\n```json\n",
            close="\n```<｜tool▁call▁end｜>",
            section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            separator="\n",
        ),
    ),
    "deepseek_v31": (
        CallSyntax(
            marker="<｜tool▁calls▁begin｜>",
            name_open="<｜tool▁call▁begin｜>",
            name_close="<｜tool▁sep｜>",
            close="<｜tool▁call▁end｜>",
            section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
    ),
    "harmony": (
        CallSyntax(
            name_open="<|channel|>commentary to=functions.",
            name_close=" <|constrain|>json<|message|>",
            single=True,
            turn="<|start|>assistant",
            reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
            preamble=("<|channel|>commentary<|message|>", "<|end|><|start|>assistant"),
            text_open="<|channel|>final<|message|>",
        ),
    ),
}
"""The versions of each format, of which a model has the first whose token it knows. What ends a call and the answer,
such as harmony's `<|call|>`, is an end-of-sequence token, and no part of the syntax."""


def call_syntax(name: str, markers: Collection[str]) -> CallSyntax | None:
    """Return the syntax of a format for a model with these markers; None for a format that has none here."""
    return next((each for each in CALL_SYNTAX.get(name, ()) if not each.needs or each.needs in markers), None)
