"""`baton chat`: a conversation in the terminal."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from rich.console import Console

from cli.client.model_client import ModelClient, Summary
from cli.commands.generate import open_client
from cli.config.errors import CommandFailed
from cli.config.settings import Settings
from cli.terminal.conversation import Conversation
from protocol.request import Limits, Sampling

PROMPT = "you> "


def run_chat(settings: Settings, sampling: Sampling, limits: Limits, *, system: str, url: str | None) -> None:
    """Chat until Ctrl-D. Raises `CommandFailed` if the model cannot be loaded or reached."""
    with closing(open_client(settings, url)) as client:
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"{client.name}. /help lists the commands; Ctrl-D exits.", markup=False)
        talk(client, Conversation(sampling, limits, system), line_reader(), console)


def talk(client: ModelClient, conversation: Conversation, read: Callable[[], str], console: Console) -> None:
    """Read lines until the end of input: execute commands, and send everything else to the model."""
    while True:
        try:
            line = read().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if not line:
            continue
        if line.startswith("/"):
            console.print(conversation.execute(line), markup=False)
            continue
        try:
            reply(client, conversation, line, console)
        except CommandFailed as error:
            conversation.remove_last()
            console.print(f"\n{error}", markup=False, style="red")


def reply(client: ModelClient, conversation: Conversation, line: str, console: Console) -> None:
    """Send one line to the model and print its reply. Of a cancelled reply, the conversation keeps what arrived."""
    received: list[str] = []
    with interruptible() as interrupted, closing(client.stream(conversation.ask(line))) as pieces:
        for piece in pieces:
            if isinstance(piece, Summary):
                break
            received.append(piece)
            print(piece, end="", flush=True)
            if interrupted():
                print(" [cancelled]", end="")
                break
    print(flush=True)
    conversation.add_reply("".join(received))


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Record the first Ctrl-C, which the returned function reports. A second one raises `KeyboardInterrupt`."""
    pressed: list[int] = []

    def press(number: int, _: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def line_reader() -> Callable[[], str]:
    """Return a reader with editing and history if standard input is a terminal, and of plain lines otherwise."""
    if not sys.stdin.isatty():
        return _plain_line
    session: PromptSession[str] = PromptSession(history=_history())
    return lambda: session.prompt(PROMPT)


def _plain_line() -> str:
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
