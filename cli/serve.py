"""`baton serve`: tell each worker what to run, start gateway and workers, and say when people can come."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence

import anyio
import msgspec

from actors.logs import configure_logging
from actors.worker_process import WorkerStatus
from cli.loading import LoadingDisplay, choose_display
from cli.model import ChosenModel, worker_spec
from cli.options import CommandFailed
from cli.settings import Settings
from gateway.daemon import WorkerLaunch, run_daemon
from gateway.settings import GatewaySettings, SettingsError
from workers.spec import WorkerSpec


def run_server(settings: Settings) -> None:
    """Serve until a signal or until no worker is left. Raises `CommandFailed` in a sentence."""
    model = ChosenModel.choose(settings)
    launches = worker_launches(settings, model)
    display = choose_display([launch.name for launch in launches], lambda status: ready_message(settings, status))
    with display:
        # Within the display, so that log lines appear above its bars and not in them.
        configure_logging("gateway", settings.log_level)
        anyio.run(_serve, gateway_settings(settings), launches, display)


async def _serve(settings: GatewaySettings, launches: Sequence[WorkerLaunch], display: LoadingDisplay) -> None:
    await run_daemon(settings, launches, on_status=display.worker_changed)


def worker_launches(settings: Settings, model: ChosenModel) -> list[WorkerLaunch]:
    """What the gateway starts: `settings.workers` like workers, w0, w1, ..."""
    names = [f"w{number}" for number in range(settings.workers)]
    return [
        WorkerLaunch(name, model.name, worker_command(worker_spec(settings, model, name, len(names)))) for name in names
    ]


def worker_command(spec: WorkerSpec) -> Callable[[str, int], list[str]]:
    """The argv of one incarnation. `-P` keeps a folder `workers` in the current directory from being run instead."""
    encoded = msgspec.json.encode(spec).decode()

    def command(endpoint: str, incarnation: int) -> list[str]:
        arguments = ["--endpoint", endpoint, "--incarnation", str(incarnation), "--spec", encoded]
        return [sys.executable, "-P", "-m", "workers", *arguments]

    return command


def gateway_settings(settings: Settings) -> GatewaySettings:
    """The gateway's part of the settings, by the same names. Raises `CommandFailed` for two that contradict."""
    names = GatewaySettings.__dataclass_fields__.keys() & Settings.model_fields.keys()
    try:
        return GatewaySettings(**{name: getattr(settings, name) for name in names})
    except SettingsError as error:
        raise CommandFailed(str(error)) from error


def ready_message(settings: Settings, status: WorkerStatus) -> str:
    """What people read when they may ask: where, a curl line that works as it is, and the chat page."""
    url = base_url(settings)
    hello, ready = status.hello, status.ready
    model = hello.model if hello else ""
    what = f"{model} is served on {url}"
    if hello:
        what += f" ({hello.backend} on {hello.device}, {settings.workers} x {hello.slots} at a time)"
    return "\n".join(
        [
            f"Ready: {what}",
            "",
            "Ask it:",
            "  " + curl_line(url, model, chat=bool(ready and ready.capabilities.chat), key=bool(settings.api_key)),
            f"Chat with it in a browser: {url}/",
            "Stop it with Ctrl-C.",
        ]
    )


def curl_line(url: str, model: str, *, chat: bool, key: bool) -> str:
    """A question to the server, to be pasted into a shell."""
    body: dict[str, object] = {"model": model}
    if chat:
        body["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
    else:
        body |= {"prompt": "The capital of France is", "max_tokens": 16}
    route = "chat/completions" if chat else "completions"
    headers = ["-H 'Content-Type: application/json'"] + ['-H "Authorization: Bearer $BATON_API_KEY"'] * key
    return f"curl {url}/v1/{route} {' '.join(headers)} -d {shlex.quote(json.dumps(body))}"


def base_url(settings: Settings) -> str:
    """Where a person on this machine reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
