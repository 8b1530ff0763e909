"""`baton pull`: downloads a model from the hub, and reports whether Baton can serve it."""

import json
from pathlib import Path

import typer
from rich.console import Console

from actors.process.logs import configure_logging
from cli.config.errors import CommandFailed, InvalidOption
from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings
from cli.terminal.byte_size import size
from cli.terminal.download_bar import download_bar
from protocol.hub_id import HubId, not_hub_id
from workers.errors import LoadRefused
from workers.hub.download import Download, Plan
from workers.inspection.servable import Servable


def pull_model(settings: Settings, name: str, *, as_json: bool) -> None:
    """Download a model, or what the cache lacks of it. Raises `CommandFailed`, also if Baton cannot serve it."""
    configure_logging("pull", "warning")  # to standard error
    model = hub_model(name)
    plan, path = download(model)
    servable = servable_with(settings, path)
    if as_json:
        print(
            json.dumps(
                {"model": str(model), "revision": plan.commit, "path": str(path), **figures(plan), **report(servable)}
            )
        )
    else:
        arrived = (
            f"{size(plan.missing)} of {size(plan.size)} downloaded" if plan.missing else f"{size(plan.size)}, unchanged"
        )
        print(f"{model}: {arrived}, revision {plan.commit[:12]}")
        print(verdict(servable, str(model)))
    if servable.problem:
        raise CommandFailed(f"{model} is in the cache, and Baton cannot serve it")


def hub_model(name: str) -> HubId:
    """Return the hub id that an argument is. Raises `InvalidOption`."""
    model = HubId.parse(name)
    if model is None:
        raise InvalidOption(f"MODEL: {not_hub_id(name)}")
    return model


def download(model: HubId) -> tuple[Plan, Path]:
    """Download what the cache lacks, with a bar on a terminal. Raises `CommandFailed`."""
    try:
        work = Download(model)
        with Console(stderr=True).status(f"asking the hub for {model}"):
            plan = work.plan()
        with download_bar(str(model), plan.missing) as show:
            return plan, work.run(plan, show)
    except LoadRefused as error:
        raise CommandFailed(str(error)) from error


def servable_with(settings: Settings, path: Path) -> Servable:
    """Return whether a worker with these settings could serve the checkpoint."""
    return Servable.of(worker_spec(settings, ChosenModel(path.name, path)))


def verdict(servable: Servable, name: str) -> str:
    """Say in one line whether it can be served, and how."""
    if servable.problem:
        return f"Cannot be served: {servable.problem}"
    text = "" if servable.text else "; it has no tokenizer.json, so that requests and answers are token ids"
    return (
        f"Can be served ({servable.family} on {servable.backend}, {servable.context} tokens of context{text}): "
        f"baton run {name}"
    )


def report(servable: Servable) -> dict[str, object]:
    """The fields of a model in JSON that say whether it can be served."""
    return {
        "servable": not servable.problem,
        "backend": servable.backend or None,
        "family": servable.family or None,
        "context": servable.context or None,
        "problem": servable.problem or None,
    }


def figures(plan: Plan) -> dict[str, int]:
    """The bytes of a model and of its download."""
    return {"bytes": plan.size, "downloaded_bytes": plan.missing}


def confirm(question: str) -> bool:
    """Ask on the terminal. Returns True for yes."""
    return typer.confirm(question, err=True)
