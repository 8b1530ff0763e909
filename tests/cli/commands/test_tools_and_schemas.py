"""Tools, reasoning and JSON schemas in `baton chat` on a pseudo-terminal, and in `baton generate`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import baton
from tests.cli.pseudo_terminal import Terminal
from tests.cli.scripted_api import Delta, ScriptedApi, call, reasoning, text

WEATHER = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = call("get_weather", '{"city": ', '"Paris"}')
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

TOOL = """
import json, sys
call = json.load(sys.stdin)
print(call["name"], call["arguments"]["city"], "18 degrees")
"""


@pytest.fixture
def tools(tmp_path: Path) -> str:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(WEATHER))
    return str(file)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path), "PROMPT_TOOLKIT_NO_CPR": "1", "BATON_API_KEY": ""}


def chat(api: ScriptedApi, environment: dict[str, str], *flags: str) -> Terminal:
    return Terminal(["-m", "cli", "chat", "--url", api.url, *flags], environment)


def generate(api: ScriptedApi, *flags: str) -> subprocess.CompletedProcess[str]:
    return baton("generate", "--url", api.url, "-p", "Hello", *flags)


def test_the_user_types_the_result_of_a_call(tools: str, environment: dict[str, str]) -> None:
    api = ScriptedApi([[reasoning("Look it "), reasoning("up."), *CALL], [text("It is mild.")]])
    with api.serve(), chat(api, environment, "--tools", tools) as terminal:
        terminal.wait_for("you>")
        terminal.type("How is the weather in Paris?\r")
        terminal.wait_for("[thinking ")
        terminal.wait_for("11 characters]")
        terminal.wait_for("get_weather(")
        terminal.wait_for('"Paris"}')
        terminal.wait_for("result of get_weather>")
        terminal.type("18 degrees\r")
        terminal.wait_for("It is mild.")
        terminal.wait_for("you>")
        terminal.type("/reasoning\r")
        terminal.wait_for("The last reply has no reasoning.")
        terminal.wait_for("you>")
        terminal.type("/quit\r")
        assert terminal.exit_status() == 0
    assert api.bodies[0]["tools"] == WEATHER
    asked, called, result = api.bodies[1]["messages"]
    assert asked == {"role": "user", "content": "How is the weather in Paris?"}
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert called == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Look it up.",
        "tool_calls": [{"id": "call_get_weather", "type": "function", "function": function}],
    }
    assert result == {"role": "tool", "content": "18 degrees", "tool_call_id": "call_get_weather"}


def test_a_command_answers_the_calls(tools: str, environment: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "weather.py"
    program.write_text(TOOL)
    command = ["--tools", tools, "--tool-command", f"{sys.executable} '{program}'"]
    api = ScriptedApi([CALL, [text("It is mild.")]])
    with api.serve(), chat(api, environment, *command) as terminal:
        terminal.wait_for("you>")
        terminal.type("How is the weather in Paris?\r")
        terminal.wait_for("get_weather returned get_weather Paris 18 degrees")
        terminal.wait_for("It is mild.")
        terminal.wait_for("you>")
        terminal.type("/bye\r")
        assert terminal.exit_status() == 0
    assert api.bodies[1]["messages"][2]["content"] == "get_weather Paris 18 degrees\n"


def test_a_result_that_is_not_given_ends_the_turn(tools: str, environment: dict[str, str]) -> None:
    api = ScriptedApi([CALL, [text("Never mind.")]])
    with api.serve(), chat(api, environment, "--tools", tools) as terminal:
        terminal.wait_for("you>")
        terminal.type("How is the weather in Paris?\r")
        terminal.wait_for("result of get_weather>")
        terminal.type("\x04")
        terminal.wait_for("[cancelled]")
        terminal.wait_for("you>")
        terminal.type("Then not\r")
        terminal.wait_for("Never mind.")
        terminal.wait_for("you>")
        terminal.type("\x04")
        assert terminal.exit_status() == 0
    assert [message["role"] for message in api.bodies[1]["messages"]] == ["user", "assistant", "tool", "user"]
    assert api.bodies[1]["messages"][2]["content"] == "cancelled by the user"


@pytest.mark.parametrize(
    ("mode", "shown"),
    [("show", "[thinking]\nLet me see.\n[answer]\n"), ("fold", "[thinking 11 characters]\n"), ("hide", "")],
)
def test_reasoning_goes_to_standard_error(mode: str, shown: str) -> None:
    api = ScriptedApi([[reasoning("Let me "), reasoning("see."), text("Hi.")]])
    with api.serve():
        ended = generate(api, "--reasoning", mode)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "Hi.\n", shown)


def test_generate_prints_calls_as_lines_of_json(tools: str) -> None:
    api = ScriptedApi([[text("Wait."), *CALL, *call("get_time", index=1)]])
    with api.serve():
        ended = generate(api, "--tools", tools)
    first, *lines = ended.stdout.splitlines()
    assert (ended.returncode, first) == (0, "Wait.")
    assert [json.loads(line) for line in lines] == [
        {"id": "call_get_weather", "name": "get_weather", "arguments": '{"city": "Paris"}'},
        {"id": "call_get_time", "name": "get_time", "arguments": "{}"},
    ]


@pytest.mark.parametrize("from_file", [False, True], ids=["given", "file"])
def test_a_schema_is_sent_as_the_response_format(from_file: bool, tmp_path: Path) -> None:
    given = json.dumps(SCHEMA)
    if from_file:
        (tmp_path / "schema.json").write_text(given)
        given = str(tmp_path / "schema.json")
    answer: list[Delta] = [text('{"city": "Paris"}')]
    api = ScriptedApi([answer])
    with api.serve():
        ended = generate(api, "--json-schema", given)
    assert (ended.returncode, json.loads(ended.stdout)) == (0, {"city": "Paris"})
    sent: dict[str, Any] = api.bodies[0]["response_format"]
    assert (sent["type"], sent["json_schema"]["schema"]) == ("json_schema", SCHEMA)
    assert sent["json_schema"]["strict"] is True


def test_json_that_reaches_the_token_limit_is_an_error() -> None:
    api = ScriptedApi([[text('{"city": "Pa')]], reason="length")
    with api.serve():
        ended = generate(api, "--json-schema", json.dumps(SCHEMA))
    assert (ended.returncode, ended.stdout) == (1, '{"city": "Pa\n')
    assert "is not complete JSON; raise --max-tokens" in ended.stderr


def test_tools_need_the_chat_template(tools: str) -> None:
    ended = baton("generate", "-p", "Hello", "--no-chat-template", "--tools", tools)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--tools: needs the chat template" in ended.stderr


def test_a_wrong_key_is_explained() -> None:
    api = ScriptedApi([], key="secret")
    with api.serve():
        ended = generate(api)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "the API key is wrong; set BATON_API_KEY" in ended.stderr
