"""Programs that answer tool calls: results, failures, and their bounds."""

import json
import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from cli.config.errors import InvalidOption
from cli.terminal.tool_command import ToolCommand
from cli.terminal.tool_results import ToolCancelled, ToolFailed
from protocol.request import ToolCall

CALL = ToolCall("c1", "get_weather", '{"city": "Paris; rm -rf $HOME"}')


def python(program: str, timeout_s: float = 60.0) -> ToolCommand:
    return ToolCommand(shlex.join([sys.executable, "-S", "-c", program]), timeout_s)


def test_a_program_gets_the_call_as_json_and_prints_the_result() -> None:
    result = python("import sys; print(sys.stdin.read(), end='')").result(CALL)
    assert json.loads(result) == {"id": "c1", "name": "get_weather", "arguments": {"city": "Paris; rm -rf $HOME"}}


def test_words_of_the_command_are_no_shell_syntax() -> None:
    assert ToolCommand("echo $HOME | cat; echo", 60).result(CALL) == "$HOME | cat; echo\n"


@pytest.mark.parametrize(
    ("program", "timeout_s", "problem"),
    [
        ("import sys; print('no such city'); sys.exit(3)", 60, "exit status 3: no such city"),
        ("import signal; signal.pause()", 0.2, "no result within 0.2 seconds"),
        ("while True: print('x' * 65536)", 60, "printed over 262144 bytes"),
    ],
    ids=["status", "time", "output"],
)
def test_a_program_that_fails_is_a_result_with_the_reason(program: str, timeout_s: float, problem: str) -> None:
    with pytest.raises(ToolFailed, match=problem):
        python(program, timeout_s).result(CALL)


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    started = f"""
import os, signal
if os.fork() == 0:
    open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
    os.close(1)
    signal.pause()
os.wait()
"""
    with pytest.raises(ToolFailed, match="no result within"):
        python(started, 5.0).result(CALL)
    pid = int((tmp_path / "pid").read_text())
    status, until = Path(f"/proc/{pid}/stat"), time.monotonic() + 10
    while status.exists() and status.read_text().split()[2] != "Z":
        assert time.monotonic() < until, "it was not killed"
        time.sleep(0.01)


@pytest.mark.parametrize("arguments", ["{", "[]", "3", "[" * 100_000], ids=["partial", "list", "number", "nested"])
def test_a_call_without_an_object_runs_nothing(arguments: str, tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match=r"the tool was not run|not a JSON object"):
        python(f"open({str(tmp_path / 'ran')!r}, 'w')").result(ToolCall("c1", "f", arguments))
    assert not (tmp_path / "ran").exists()


def test_ctrl_c_ends_the_program() -> None:
    press = f"import os, signal; os.kill({os.getpid()}, signal.SIGINT); signal.pause()"
    with pytest.raises(ToolCancelled):
        python(press).result(CALL)


@pytest.mark.parametrize("command", ["", "  ", "no-such-program --flag", "echo 'open"])
def test_a_command_that_cannot_run_is_refused_at_once(command: str) -> None:
    with pytest.raises(InvalidOption, match=r"^--tool-command: "):
        ToolCommand(command, 60)
