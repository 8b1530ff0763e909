"""`baton run`: a chat with a model of a running server, or of one that is started for the time of the chat."""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from cli.client.model_client import ModelClient
from cli.client.owned_server import owned_server
from cli.client.remote import RemoteClient
from cli.client.server_url import UNIX, server_client, url_of
from cli.commands.chat import chat_with
from cli.commands.generate import print_answer, request_from
from cli.commands.models.pull import confirm, download
from cli.config.errors import CommandFailed
from cli.config.launch import worker_launches
from cli.config.model import BUILTIN_NAME, ChosenModel, check_model, worker_spec
from cli.config.panels.field import ENGINE, JOINING, LIMITS, MODEL, SERVER
from cli.config.settings import Settings, of_panels
from cli.terminal.byte_size import size
from cli.terminal.conversation import Conversation
from protocol.hub_id import HubId, plain_name
from protocol.request import Limits, Sampling
from workers.errors import LoadRefused
from workers.hub.download import Download
from workers.hub.resolve import hub_id

ASK_S = 2.0
"""Deadline of the question which models a running server serves."""
POLL_S = 0.1


def run_model(
    settings: Settings,
    prompt: str,
    sampling: Sampling,
    limits: Limits,
    *,
    system: str,
    url: str | None,
    own: bool,
    stats: bool,
) -> None:
    """Answer the prompt, or chat without one. With `own` a server is started in any case. Raises `CommandFailed`."""
    request = request_from(prompt, sampling, limits, system=system, chat=True) if prompt else None
    with opened(settings, url, own=own) as client:
        if request is None:
            chat_with(client, Conversation(sampling, limits, system))
        else:
            print_answer(client, request, stats=stats)


@contextmanager
def opened(settings: Settings, url: str | None, *, own: bool) -> Iterator[ModelClient]:
    """Connect to the server at `url`; by default to the one of the settings if it serves the model, or else to one that
    is started for this block."""
    if url is not None:
        with closing(RemoteClient.connect(url, settings.api_key, plain_name(settings.model))) as client:
            yield client
        return
    name = settings.name or plain_name(settings.model) or BUILTIN_NAME
    if not own and name in served_models(settings):
        with closing(RemoteClient.connect(url_of(settings), settings.api_key, name)) as client:
            yield client
        return
    ensure_downloaded(settings.model)
    with started(settings) as client:
        yield client


def served_models(settings: Settings) -> list[str]:
    """Return all names of the models of the server of the settings; none if no server answers, or not this user."""
    try:
        with server_client(url_of(settings), settings.api_key, ASK_S, settings.tls_cert) as client:
            answer = client.get("/v1/models")
            models = answer.json()["data"] if answer.is_success else []
            return [str(name) for each in models for name in (each["id"], *(each.get("aliases") or ()))]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return []


def ensure_downloaded(name: str) -> None:
    """Download a hub model that is not in the cache, after a question on a terminal. Raises `CommandFailed`."""
    if not name or name == BUILTIN_NAME:
        return
    try:
        model = hub_id(name)
        if model is None or Download(model).cached() is not None:
            return
        if sys.stdin.isatty():
            _ask(model)
    except LoadRefused as error:
        raise CommandFailed(str(error)) from error
    download(model)


def _ask(model: HubId) -> None:
    missing = Download(model).plan().missing
    if not confirm(f"{model} is not on this machine. Download {size(missing)}?"):
        raise CommandFailed(f"{model} is not on this machine; `baton pull {model}` downloads it")


@contextmanager
def started(settings: Settings) -> Iterator[ModelClient]:
    """Start a server for this block, on a Unix socket in a folder that only this user can enter."""
    model = ChosenModel.choose(settings)
    check_model(worker_spec(settings, model))
    with tempfile.TemporaryDirectory(prefix="baton-run-") as folder:
        path, log = Path(folder) / "baton.sock", Path(folder) / "log"
        with owned_server(private_options(settings), worker_launches, log=log, policy=None, unix_socket=path) as server:
            url = f"{UNIX}{path}"
            with (
                Console(stderr=True).status(f"loading {model.name}"),
                server_client(url, "", ASK_S) as client,
            ):
                while not _is_ready(client):
                    if problem := server.problem():
                        raise CommandFailed(problem)
                    time.sleep(POLL_S)
            with closing(RemoteClient.connect(url, "", model.name)) as client_of_model:
                yield client_of_model


def private_options(settings: Settings) -> dict[str, Any]:
    """Return the settings of the server for one user: those of the model and its engine, and the defaults of all
    others, such as keys, since no one else reaches it."""
    defaults = {name: Settings.model_fields[name].default for name in of_panels(SERVER, LIMITS, JOINING)}
    return defaults | {name: getattr(settings, name) for name in of_panels(MODEL, ENGINE)} | {"log_level": "error"}


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health/ready").is_success
    except httpx.TransportError:  # it has just ended, or has no time to answer while it starts workers
        return False
