"""`baton generate`: one prompt, one answer on standard output."""

from contextlib import closing

from rich.console import Console

from cli.client.answers import Answers, Ask, RemoteAnswers, Summary
from cli.client.local import LocalAnswers
from cli.config.errors import InvalidOption
from cli.config.settings import Settings
from cli.terminal.prompt import read_prompt
from protocol.request import Limits, Message, Sampling


def ask_for(prompt: str, sampling: Sampling, limits: Limits, *, system: str, chat: bool) -> Ask:
    """The question of the flags. Raises `InvalidOption` for a prompt that no model could take."""
    text = read_prompt(prompt)
    if not chat:
        if system:
            raise InvalidOption("--system: needs the chat template; leave --no-chat-template out")
        return Ask(sampling, limits, prompt=text)
    first = (Message("system", system),) if system else ()
    return Ask(sampling, limits, messages=(*first, Message("user", text)))


def open_answers(settings: Settings, url: str | None) -> Answers:
    """A running server when there is a URL, else the model in this process. Raises `CommandFailed`."""
    if url is None:
        return LocalAnswers.load(settings)
    return RemoteAnswers.connect(url, settings.api_key, settings.model)


def answer_once(settings: Settings, ask: Ask, *, url: str | None, stats: bool) -> None:
    """Print the answer as it comes, and the counts on stderr with `stats`. Raises `CommandFailed`."""
    with closing(open_answers(settings, url)) as answers, closing(answers.stream(ask)) as pieces:
        for piece in pieces:
            if isinstance(piece, Summary):
                print(flush=True)
                if stats:
                    Console(stderr=True, highlight=False, soft_wrap=True).print(piece.line(), style="dim")
            else:
                print(piece, end="", flush=True)
