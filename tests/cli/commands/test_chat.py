"""`baton chat` with a scripted model client, and as a process on a pseudo-terminal."""

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from cli.client.model_client import ModelRequest, Pieces, Summary
from cli.commands.chat import MAX_ROUNDS, talk
from cli.config.errors import CommandFailed
from cli.terminal.conversation import Conversation
from cli.terminal.interruption import interruptible
from gateway.generation.delta import ToolCallDelta
from protocol.request import Limits, Sampling
from tests.cli.pseudo_terminal import Terminal


class Script:
    """A model client with scripted replies; an exception in the script is raised, a callable is called."""

    name = "script"

    def __init__(self, *replies: list[object]) -> None:
        self._replies = list(replies)
        self.asked: list[ModelRequest] = []
        self.closed = 0

    def stream(self, ask: ModelRequest) -> Pieces:
        self.asked.append(ask)
        try:
            for piece in self._replies.pop(0):
                if isinstance(piece, Exception):
                    raise piece
                yield piece if isinstance(piece, ToolCallDelta) else str(piece() if callable(piece) else piece)
            yield Summary(1, 1, "stop", 0.0, 0.0)
        finally:
            self.closed += 1

    def close(self) -> None: ...


def run(script: Script, *lines: str | type[BaseException]) -> str:
    """Enter the lines and exit. Returns what the console printed."""
    output = io.StringIO()
    waiting: Iterator[str | type[BaseException]] = iter([*lines, EOFError])

    def read() -> str:
        line = next(waiting)
        if isinstance(line, str):
            return line
        raise line

    talk(script, Conversation(Sampling(), Limits()), read, Console(file=output, width=200))
    return output.getvalue()


def said(ask: ModelRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in ask.messages]


def test_each_reply_is_printed_and_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(["Hel", "lo"], ["Bye"])
    run(script, "Hi", "", "So long")
    assert capsys.readouterr().out == "Hello\nBye\n"
    assert said(script.asked[1]) == [("user", "Hi"), ("assistant", "Hello"), ("user", "So long")]


def test_commands_are_executed_and_not_sent() -> None:
    script = Script(["Hello"])
    output = run(script, "/system Be brief.", "/params seed=3", "Hi", "/nonsense")
    assert said(script.asked[0]) == [("system", "Be brief."), ("user", "Hi")]
    assert script.asked[0].sampling.seed == 3
    assert "There is no command /nonsense" in output


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye", "/EXIT", "/exit now", " /quit "])
def test_a_conversation_is_left(line: str) -> None:
    script = Script(["Hello"])
    run(script, line, "Hi")
    assert not script.asked


def test_a_path_is_a_message() -> None:
    script = Script(["A file."])
    run(script, "/etc/hosts holds what?")
    assert said(script.asked[0]) == [("user", "/etc/hosts holds what?")]


def test_an_unknown_command_is_answered_with_those_that_exist() -> None:
    output = run(Script(), "/exif")
    commands = "/help, /exit, /quit, /bye, /clear, /image, /system, /params, /reasoning"
    assert output == f"There is no command /exif; there are {commands}. /help explains them.\n"


def test_rounds_of_tool_calls_are_bounded() -> None:
    call = ToolCallDelta(0, 0, "c1", "again", "{}")
    rounds: list[list[object]] = [[call] for _ in range(MAX_ROUNDS)]
    script = Script(*rounds, ["Done."])
    output = run(script, "Loop", *["result"] * MAX_ROUNDS, "And now?")
    assert f"Stopped after {MAX_ROUNDS} rounds" in output
    assert len(script.asked) == MAX_ROUNDS + 1
    assert said(script.asked[-1])[-2:] == [("tool", "result"), ("user", "And now?")]


def test_a_failure_after_a_tool_call_removes_the_whole_turn() -> None:
    call = ToolCallDelta(0, 0, "c1", "now", "{}")
    script = Script([call], [CommandFailed("the worker died")], ["Hello"])
    run(script, "What time is it?", "noon", "Again")
    assert said(script.asked[2]) == [("user", "Again")]


def test_a_cancelled_call_is_not_answered(capsys: pytest.CaptureFixture[str]) -> None:
    def press() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return ""

    script = Script([ToolCallDelta(0, 0, "c1", "now", '{"half'), press], ["Hello"])
    run(script, "What time is it?", "On")
    assert said(script.asked[1]) == [("user", "What time is it?"), ("assistant", ""), ("user", "On")]
    assert not script.asked[1].messages[1].tool_calls


def test_ctrl_c_at_the_prompt_begins_a_new_line() -> None:
    script = Script(["Hello"])
    run(script, KeyboardInterrupt, "Hi")
    assert len(script.asked) == 1


def test_ctrl_c_in_a_reply_cancels_it_and_keeps_what_came(capsys: pytest.CaptureFixture[str]) -> None:
    def press() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return " two"

    script = Script(["one", press, " three"], ["four"])
    run(script, "Count", "On")
    assert capsys.readouterr().out == "one two [cancelled]\nfour\n"
    assert said(script.asked[1])[1] == ("assistant", "one two")
    assert script.closed == 2


def test_a_second_ctrl_c_is_an_exception_and_the_old_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_failed_reply_is_shown_and_the_conversation_continues() -> None:
    script = Script(["Hel", CommandFailed("the worker died")], ["Hello"])
    output = run(script, "Hi", "Again")
    assert "the worker died" in output
    assert said(script.asked[1]) == [("user", "Again")]


def test_a_conversation_on_a_terminal(tmp_path: Path) -> None:
    """Prompt, history, help, a reply and Ctrl-D."""
    chat = ["-m", "cli", "chat", "--backend", "scripted", "-n", "4000"]
    with Terminal(chat, {"XDG_STATE_HOME": str(tmp_path), "PROMPT_TOOLKIT_NO_CPR": "1"}) as terminal:
        terminal.wait_for("you>")
        terminal.type("/params max_tokens=5\r")
        terminal.wait_for("max_tokens=5")
        terminal.wait_for("you>")
        terminal.type("Hello\r")
        terminal.wait_for("you>")
        terminal.type("/help\r")
        terminal.wait_for("Ctrl-D")
        terminal.wait_for("you>")
        terminal.type("\x04")
        assert terminal.exit_status() == 0
    history = tmp_path / "baton" / "chat_history"
    assert "+Hello" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_a_reply_on_a_terminal_is_cancelled_by_ctrl_c(tmp_path: Path) -> None:
    chat = ["-m", "cli", "chat", "--backend", "scripted", "--context", "1000000", "-n", "900000"]
    with Terminal(chat, {"XDG_STATE_HOME": str(tmp_path), "PROMPT_TOOLKIT_NO_CPR": "1"}) as terminal:
        terminal.wait_for("you>")
        terminal.type("Hello\r")
        terminal.wait_for_much(2_000)
        terminal.interrupt()
        terminal.wait_for("[cancelled]")
        terminal.wait_for("you>")
        terminal.type("\x04")
        assert terminal.exit_status() == 0
