"""`baton chat`: a conversation in the terminal."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from rich.console import Console

from cli.client.model_client import ModelClient, ModelRequest, Summary
from cli.client.reply_parts import ReplyParts
from cli.commands.generate import open_client
from cli.config.errors import CommandFailed
from cli.config.settings import Settings
from cli.terminal.conversation import EXITS, Conversation, command_of
from cli.terminal.interruption import interruptible
from cli.terminal.reply_view import ReplyView
from cli.terminal.tool_command import ToolCommand
from cli.terminal.tool_results import ToolCancelled, ToolFailed, ToolResults, TypedResults
from protocol.request import ToolCall

PROMPT = "you> "


MAX_ROUNDS = 16
"""Rounds of tool calls in one turn."""
SHOWN_RESULT = 500
"""Characters of a result that are shown."""


def run_chat(
    settings: Settings, conversation: Conversation, *, url: str | None, tool_command: str | None, tool_timeout_s: float
) -> None:
    """Chat until Ctrl-D. Raises `CommandFailed` if the model cannot be loaded or reached."""
    command = ToolCommand(tool_command, tool_timeout_s) if tool_command is not None else None
    with closing(open_client(settings, url)) as client:
        chat_with(client, conversation, command)


def chat_with(client: ModelClient, conversation: Conversation, results: ToolResults | None = None) -> None:
    """Chat in the terminal until Ctrl-D. By default the results of tools are typed."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{client.name}. /help lists the commands; Ctrl-D or /exit leaves.", markup=False)
    read = line_reader(_history())
    talk(client, conversation, lambda: read(PROMPT), console, results or TypedResults(line_reader(InMemoryHistory())))


def talk(
    client: ModelClient,
    conversation: Conversation,
    read: Callable[[], str],
    console: Console,
    results: ToolResults | None = None,
) -> None:
    """Read lines until the end of input or `/exit`: execute commands, and send everything else to the model."""
    results = results or TypedResults(lambda prompt: read())
    while True:
        try:
            line = read().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if not line:
            continue
        if command := command_of(line):
            if command in EXITS:
                return
            console.print(conversation.execute(line), markup=False)
            continue
        try:
            take_turn(client, conversation, line, console, results)
        except CommandFailed as error:
            conversation.remove_last()
            console.print(f"\n{error}", markup=False, style="red")


def take_turn(
    client: ModelClient, conversation: Conversation, line: str, console: Console, results: ToolResults
) -> None:
    """Send one line to the model, print its reply, and answer the tools that it calls until it calls none."""
    request = conversation.ask(line)
    for _ in range(MAX_ROUNDS):
        calls = reply(client, conversation, request, console)
        if not calls or not answer_calls(conversation, calls, console, results):
            return
        request = conversation.request()
    console.print(f"Stopped after {MAX_ROUNDS} rounds of tool calls.", markup=False, style="red")


def reply(
    client: ModelClient, conversation: Conversation, request: ModelRequest, console: Console
) -> tuple[ToolCall, ...]:
    """Print the reply to a request and return its tool calls.

    Of a cancelled reply, the conversation keeps the text that arrived.
    """
    parts, view, cancelled = ReplyParts(), ReplyView(console, conversation.reasoning_mode), False
    with interruptible() as interrupted, closing(client.stream(request)) as pieces:
        for piece in pieces:
            if isinstance(piece, Summary):
                break
            parts.add(piece)
            view.show(piece)
            if cancelled := interrupted():
                break
    view.end()
    calls = () if cancelled else parts.calls()
    if cancelled:
        print(" [cancelled]", end="")
    if cancelled or parts.text or not calls:
        print(flush=True)
    conversation.add_reply(parts.text, parts.reasoning, calls)
    return calls


def answer_calls(conversation: Conversation, calls: Sequence[ToolCall], console: Console, results: ToolResults) -> bool:
    """Add the result of each call to the conversation. Return False if the user cancelled one."""
    cancelled = False
    for call in calls:
        text = "cancelled by the user"
        if not cancelled:
            try:
                text = results.result(call)
                if not results.typed:
                    console.print(f"{call.name} returned {_shortened(text)}", markup=False, style="dim")
            except ToolFailed as error:
                text = f"error: {error}"
                console.print(f"{call.name}: {error}", markup=False, style="red")
            except ToolCancelled:
                cancelled = True
                console.print("[cancelled]", markup=False)
        conversation.add_result(call, text)
    return not cancelled


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_RESULT else f"{text[:SHOWN_RESULT]}... ({len(text)} characters)"


def line_reader(history: History) -> Callable[[str], str]:
    """Return a reader with a prompt, editing and history if standard input is a terminal, and of plain lines
    otherwise."""
    if not sys.stdin.isatty():
        return _plain_line
    session: PromptSession[str] = PromptSession(history=history)
    return lambda prompt: session.prompt(prompt)


def _plain_line(prompt: str) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _history() -> History:
    """Open the history file, readable by its owner only. Without a writable home, the history is kept in memory."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "baton"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = state / "chat_history"
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))
