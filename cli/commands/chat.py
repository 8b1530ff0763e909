"""`baton chat`: a conversation on the terminal."""

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
    """Talk until Ctrl-D. Raises `CommandFailed` when the model cannot be had."""
    with closing(open_client(settings, url)) as answers:
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"{answers.name}. /help lists the commands; Ctrl-D leaves.", markup=False)
        talk(answers, Conversation(sampling, limits, system), line_reader(), console)


def talk(answers: ModelClient, conversation: Conversation, read: Callable[[], str], console: Console) -> None:
    """The loop of lines: commands are obeyed, everything else is said to the model."""
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
            console.print(conversation.obey(line), markup=False)
            continue
        try:
            reply(answers, conversation, line, console)
        except CommandFailed as error:
            conversation.forget_last()
            console.print(f"\n{error}", markup=False, style="red")


def reply(answers: ModelClient, conversation: Conversation, line: str, console: Console) -> None:
    """Say one line to the model and print what comes; a cancelled reply is kept as far as it came."""
    said: list[str] = []
    with interruptible() as interrupted, closing(answers.stream(conversation.ask(line))) as pieces:
        for piece in pieces:
            if isinstance(piece, Summary):
                break
            said.append(piece)
            print(piece, end="", flush=True)
            if interrupted():
                print(" [cancelled]", end="")
                break
    print(flush=True)
    conversation.answered("".join(said))


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within, a Ctrl-C is a question (has it been pressed?) and not an exception; a second one is an exception."""
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
    """Lines with editing and history on a terminal; plain lines when standard input is a file or a pipe."""
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
    """The lines of earlier talks, readable by their owner alone; without a home they last for this talk."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "baton"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = state / "chat_history"
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))
