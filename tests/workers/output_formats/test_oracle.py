"""Complete calls mean what mlx-lm's parsers read in them."""

from importlib import import_module
from typing import Any

import pytest

from tests.workers.output_formats.answers import ANSWERS
from tests.workers.output_formats.parsed import TOOLS, parse

PARSERS = {
    "hermes": "json_tools",
    "qwen3_coder": "qwen3_coder",
    "glm": "glm47",
    "gemma4": "gemma4",
    "kimi_k2": "kimi_k2",
    "lfm2": "pythonic",
    "mistral": "mistral",
    "minimax_m2": "minimax_m2",
}
"""Modules of `mlx_lm.tool_parsers` by format."""
OWN = {
    "mistral, header",  # without ids between name and arguments
    "hermes, OpenAI's object",  # not read by mlx-lm
    "qwen3_coder, all types",  # which takes `True` for false there
}


def oracle(tools: str, written: str) -> list[tuple[str, Any]]:
    """Split an answer at the markers of a call, as mlx-lm does, and read each part with its parser."""
    parser = import_module(f"mlx_lm.tool_parsers.{PARSERS[tools]}")
    calls: list[tuple[str, Any]] = []
    start, end = parser.tool_call_start, parser.tool_call_end
    for part in written.split(start)[1:]:
        body = part.partition(end)[0] if end else part
        found = parser.parse_tool_call(body, TOOLS)
        calls += [(call["name"], call["arguments"]) for call in (found if isinstance(found, list) else [found])]
    return calls


@pytest.mark.parametrize(
    "name", [name for name, answer in ANSWERS.items() if answer.tools in PARSERS and name not in OWN]
)
def test_published_answers(name: str) -> None:
    answer = ANSWERS[name]
    assert oracle(answer.tools, answer.written) == list(answer.calls)


@pytest.mark.parametrize("value", ["Paris", "a b", 'say "hi"', "<b>x</b>", "{x}", "1", "é\n\nè", "back\\slash"])
@pytest.mark.parametrize("tools", ["qwen3_coder", "glm", "gemma4", "minimax_m2"])
def test_strings(tools: str, value: str) -> None:
    written = {
        "qwen3_coder": f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{value}\n</parameter>\n"
        "</function></tool_call>",
        "glm": f"<tool_call>get_weather<arg_key>city</arg_key><arg_value>{value}</arg_value></tool_call>",
        "gemma4": f'<|tool_call>call:get_weather{{city:<|"|>{value}<|"|>}}<tool_call|>',
        "minimax_m2": f'<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">{value}</parameter>\n'
        "</invoke>\n</minimax:tool_call>",
    }[tools]
    assert parse(written, tools).decoded() == oracle(tools, written) == [("get_weather", {"city": value})]
