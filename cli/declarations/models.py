"""Declares `baton pull`, `baton list`, `baton inspect`, `baton ps`, `baton run` and `baton rm`."""

from typing import Annotated

import typer
from rich.console import Console

from cli.commands.admin import OF_SETTINGS
from cli.commands.admin import Url as AdminUrl
from cli.config import sampling_options
from cli.config.errors import InvalidOption
from cli.config.options import Json, complete_hub_model, flags_given, switch, takes_settings
from cli.config.panels.field import ENGINE, MODEL
from cli.config.settings import Settings, flag, of_panels
from cli.declarations.generation import System, Url

HubModel = Annotated[
    str,
    typer.Argument(
        help="Hub id of the model: ORG/NAME, ORG/NAME@REVISION or, of GGUF files, ORG/NAME:Q4_K_M.",
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_hub_model,
    ),
]
SERVING = ("host", "port", "tcp", "unix_socket", "tls_cert", "api_key")
"""The settings that say where a running server is."""


@takes_settings("backend")
def pull(settings: Settings, model: HubModel, as_json: Json = False) -> None:
    """Download a model from the Hugging Face hub, and say whether Baton can serve it."""
    from cli.commands.models.pull import pull_model

    pull_model(settings, model, as_json=as_json)


@takes_settings("backend")
def list_(settings: Settings, as_json: Json = False) -> None:
    """List the models on this machine: the built-in one and those of the hub's cache."""
    from cli.commands.models.listing import list_models

    list_models(settings, as_json=as_json)


@takes_settings("model", "backend", "device", "dtype", "context", "mmproj", "max_lora_rank")
def inspect(
    settings: Settings,
    base: Annotated[
        str,
        typer.Option(
            help="Of a LoRA adapter: the model that it is for.", metavar="MODEL", show_default="the one that it names"
        ),
    ] = "",
    tensors: Annotated[bool, switch("--tensors", help="List each tensor: its type, its shape and its use.")] = False,
    as_json: Json = False,
) -> None:
    """Report what a checkpoint is, which backends serve it, and what memory it takes, by the headers of its files; of a
    LoRA adapter, whether it fits a model."""
    from cli.commands.models.inspecting import inspect_model

    if not inspect_model(settings, Console(highlight=False), tensors=tensors, as_json=as_json, base=base):
        raise typer.Exit(1)


@takes_settings()
def rm(
    settings: Settings,
    model: HubModel,
    yes: Annotated[bool, switch("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a model from the hub's cache, or one of its GGUF models, unless a worker on this machine serves it."""
    from cli.commands.models.remove import remove_model

    remove_model(model, yes=yes)


@takes_settings("api_key", "admin_key")
def ps(settings: Settings, url: AdminUrl = OF_SETTINGS, as_json: Json = False) -> None:
    """List the models of a running server."""
    from cli.commands.models.loaded import show_loaded

    show_loaded(settings, url, as_json=as_json)


@takes_settings(*of_panels(MODEL, ENGINE), *SERVING)
def run(
    settings: Settings,
    invocation: typer.Context,
    prompt: Annotated[
        str, typer.Argument(help="The prompt; - reads standard input.", metavar="PROMPT", show_default="a chat")
    ] = "",
    max_tokens: sampling_options.MaxTokens = 512,
    temperature: sampling_options.Temperature = 0.0,
    top_k: sampling_options.TopK = 0,
    top_p: sampling_options.TopP = 1.0,
    seed: sampling_options.Seed = 0,
    system: System = "",
    stats: Annotated[bool, switch("--stats", help="Print token counts and speed on stderr.")] = False,
    url: Url = None,
) -> None:
    """Chat with a model, or answer PROMPT. A running server is used if it serves MODEL; otherwise one is started until
    the end of the chat, and a hub model that is missing is downloaded."""
    from cli.commands.models.run import run_model

    given = flags_given(invocation) & {*of_panels(MODEL, ENGINE)} - {"model", "name"}
    if url is not None and given:
        raise InvalidOption(f"{', '.join(map(flag, sorted(given)))}: not with --url, whose server has loaded its model")
    sampling = sampling_options.sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    limits = sampling_options.limits(max_tokens=max_tokens)
    run_model(settings, prompt, sampling, limits, system=system, url=url, own=bool(given), stats=stats)
