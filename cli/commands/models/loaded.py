"""`baton ps`: the models that a running server has."""

import json
from typing import Any

from cli.client.administration import Administration
from cli.config.errors import CommandFailed
from cli.config.settings import Settings
from cli.terminal.model_table import show_models

_LOADING = {"starting", "loading", "backoff"}


def show_loaded(settings: Settings, url: str, *, as_json: bool) -> None:
    """Print the models of the server at `url`, or of the one of the settings. Raises `CommandFailed`."""
    with Administration.of(url, settings, reads=True) as client:
        models = loaded_models(client)
    if as_json:
        print(json.dumps({"models": models}))
        return
    show_models(models)


def loaded_models(client: Administration) -> list[dict[str, Any]]:
    """Return the models of a server, as `/admin/models` describes them. Of a server without that route they are put
    together from the list of workers."""
    answer = client.find("/admin/models")
    if answer is None:
        return _by_workers(client.get("/admin/workers").get("workers"))
    models = answer.get("models")
    if not isinstance(models, list) or not all({"id", "state"} <= {*each} for each in models):
        raise CommandFailed(f"{client.server} did not answer as a Baton server does; check --url")
    return models


def _by_workers(workers: Any) -> list[dict[str, Any]]:
    if not isinstance(workers, list):
        raise CommandFailed("the server did not answer as a Baton server does; check --url")
    models: dict[str, list[dict[str, Any]]] = {}
    for worker in workers:
        models.setdefault(worker["model"], []).append(worker)
    return [
        {
            "id": name,
            "state": _state([worker["state"] for worker in those]),
            "workers": len(those),
            "backend": next((worker["backend"] for worker in those if worker["backend"]), None),
        }
        for name, those in models.items()
    ]


def _state(states: list[str]) -> str:
    if "ready" in states:
        return "loaded"
    if _LOADING & {*states}:
        return "loading"
    return "failed" if "given_up" in states else "unloaded"
