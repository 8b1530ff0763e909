"""`baton generate`: prints the answer to one prompt. Its flags are declared in `cli/declarations/generation.py`."""

import json
from contextlib import closing

import msgspec
from rich.console import Console

from cli.client.local import LocalClient
from cli.client.model_client import ModelClient, ModelRequest, Summary
from cli.client.remote import RemoteClient
from cli.client.reply_parts import ReplyParts
from cli.config.errors import CommandFailed, InvalidOption
from cli.config.generation_options import ReasoningMode
from cli.config.settings import Settings
from cli.terminal.prompt import read_prompt
from cli.terminal.reply_view import ReplyView
from gateway.generation.delta import ToolCallDelta
from protocol.request import Grammar, Limits, Message, Sampling


def request_from(
    prompt: str,
    sampling: Sampling,
    limits: Limits,
    *,
    system: str,
    chat: bool,
    grammar: Grammar | None = None,
    tools: str = "",
) -> ModelRequest:
    """Return the request that the flags describe. Raises `InvalidOption` for an invalid prompt."""
    text = read_prompt(prompt)
    if not chat:
        if system or tools:
            name = "--system" if system else "--tools"
            raise InvalidOption(f"{name}: needs the chat template; leave out --no-chat-template")
        return ModelRequest(sampling, limits, prompt=text, grammar=grammar)
    first = (Message("system", system),) if system else ()
    return ModelRequest(sampling, limits, messages=(*first, Message("user", text)), grammar=grammar, tools=tools)


def open_client(settings: Settings, url: str | None) -> ModelClient:
    """Connect to the server at `url`, or load the model in this process if it is None. Raises `CommandFailed`."""
    if url is None:
        return LocalClient.load(settings)
    return RemoteClient.connect(url, settings.api_key, settings.model)


def answer_once(
    settings: Settings, request: ModelRequest, *, url: str | None, stats: bool, reasoning: ReasoningMode = "fold"
) -> None:
    """Print the answer of the server at `url`, or of the model in this process. See `print_answer`."""
    with closing(open_client(settings, url)) as client:
        print_answer(client, request, stats=stats, reasoning=reasoning)


def print_answer(
    client: ModelClient, request: ModelRequest, *, stats: bool = False, reasoning: ReasoningMode = "fold"
) -> None:
    """Print the answer as it is generated: text, then each tool call as a line of JSON. Reasoning goes to stderr, and
    with `stats` the counts. Raises `CommandFailed`, also for JSON that is incomplete."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    parts, view = ReplyParts(), ReplyView(console, reasoning)
    with closing(client.stream(request)) as pieces:
        for piece in pieces:
            if isinstance(piece, Summary):
                view.end()
                print_calls(parts)
                if stats:
                    console.print(piece.line(), style="dim")
                if request.grammar is not None and piece.reason == "length":
                    raise CommandFailed(
                        "the answer ended at the token limit and is not complete JSON; raise --max-tokens"
                    )
            else:
                parts.add(piece)
                if not isinstance(piece, ToolCallDelta):
                    view.show(piece)


def print_calls(parts: ReplyParts) -> None:
    """End the line of the text, and print each call as a line of JSON."""
    calls = parts.calls()
    if parts.text or not calls:
        print(flush=True)
    for call in calls:
        print(json.dumps(msgspec.structs.asdict(call), ensure_ascii=False), flush=True)
