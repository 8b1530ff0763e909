"""`baton generate`: prints the answer to one prompt. Its flags are declared in `cli/main.py`."""

from contextlib import closing

from rich.console import Console

from cli.client.local import LocalClient
from cli.client.model_client import ModelClient, ModelRequest, Summary
from cli.client.remote import RemoteClient
from cli.config.errors import InvalidOption
from cli.config.settings import Settings
from cli.terminal.prompt import read_prompt
from protocol.request import Limits, Message, Sampling


def request_from(prompt: str, sampling: Sampling, limits: Limits, *, system: str, chat: bool) -> ModelRequest:
    """Return the request that the flags describe. Raises `InvalidOption` for an invalid prompt."""
    text = read_prompt(prompt)
    if not chat:
        if system:
            raise InvalidOption("--system: needs the chat template; leave out --no-chat-template")
        return ModelRequest(sampling, limits, prompt=text)
    first = (Message("system", system),) if system else ()
    return ModelRequest(sampling, limits, messages=(*first, Message("user", text)))


def open_client(settings: Settings, url: str | None) -> ModelClient:
    """Connect to the server at `url`, or load the model in this process if it is None. Raises `CommandFailed`."""
    if url is None:
        return LocalClient.load(settings)
    return RemoteClient.connect(url, settings.api_key, settings.model)


def answer_once(settings: Settings, request: ModelRequest, *, url: str | None, stats: bool) -> None:
    """Print the answer as it is generated, and with `stats` the counts on stderr. Raises `CommandFailed`."""
    with closing(open_client(settings, url)) as client, closing(client.stream(request)) as pieces:
        for piece in pieces:
            if isinstance(piece, Summary):
                print(flush=True)
                if stats:
                    Console(stderr=True, highlight=False, soft_wrap=True).print(piece.line(), style="dim")
            else:
                print(piece, end="", flush=True)
