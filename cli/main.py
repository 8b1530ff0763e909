"""The one command `baton`: what can be asked for; each sub-command lives in a file of its own."""

import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton_serve import __version__
from cli import admin, keys, options
from cli.options import CommandFailed, takes_settings
from cli.settings import ENGINE, JOINING, LIMITS, MODEL, SERVER, Settings, flag, of_panels

app = typer.Typer(
    name="baton",
    help="Serve language models from worker processes that may die at any moment, on IREE and on MLX.\n\n"
    "No MODEL means the small built-in one. Every setting is a flag, a BATON_* variable or a line of baton.toml: "
    "--max-batch-size, BATON_MAX_BATCH_SIZE, max_batch_size = 8.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(admin.app, name="admin")
app.add_typer(keys.app, name="keys")

IN_PROCESS = ("model", "backend", "device", "dtype", "quantize", "context", "threads", "cache_dir")
"""The settings of a command that runs the model itself."""
OWN = (*IN_PROCESS, "max_batch_size", "workers", "standby")
"""Of one that starts a server of its own."""

Url = Annotated[
    str | None,
    typer.Option("--url", help="Ask a running server instead of loading the model here.", metavar="URL"),
]
PromptText = Annotated[str, typer.Option("-p", "--prompt", help="The prompt; - reads it from standard input.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"baton {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, options.switch("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of `baton` itself."""


@app.command()
@takes_settings(*of_panels(MODEL, ENGINE, SERVER, LIMITS))
def serve(
    settings: Settings,
    take_over: Annotated[
        bool,
        options.switch("--take-over", help="Take the port over from a server that has it, once the workers are ready."),
    ] = False,
) -> None:
    """Serve a model over HTTP, in the manner of OpenAI's API."""
    from cli.serve import run_server

    run_server(settings, take_over=take_over)


@app.command()
@takes_settings(*of_panels(MODEL, ENGINE, JOINING), "hang_timeout_s", "log_level")
def worker(settings: Settings) -> None:
    """Compute for a gateway on another machine, which listens for workers."""
    from cli.worker import run_worker

    run_worker(settings)


@app.command()
@takes_settings(*IN_PROCESS)
def generate(
    settings: Settings,
    prompt: PromptText,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    logit_bias: options.LogitBias = None,
    min_tokens: options.MinTokens = 0,
    stop: options.Stops = None,
    ignore_eos: options.IgnoreEos = False,
    no_chat_template: Annotated[
        bool, options.switch("--no-chat-template", help="Continue the prompt as plain text.")
    ] = False,
    system: Annotated[str, typer.Option(help="What the model is told before the prompt.", show_default=False)] = "",
    stats: Annotated[bool, options.switch("--stats", help="Print counts and speed.")] = False,
    url: Url = None,
) -> None:
    """Answer one prompt and leave."""
    from cli.generate import answer_once, ask_for

    sampling = options.sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        logit_bias=options.biases(logit_bias),
    )
    limits = options.limits(max_tokens=max_tokens, stop=stop, ignore_eos=ignore_eos, min_tokens=min_tokens)
    ask = ask_for(prompt, sampling, limits, system=system, chat=not no_chat_template)
    answer_once(settings, ask, url=url, stats=stats)


@app.command()
@takes_settings(*IN_PROCESS)
def chat(
    settings: Settings,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    system: Annotated[str, typer.Option(help="What the model is told first.", show_default=False)] = "",
    url: Url = None,
) -> None:
    """Talk with a model. Ctrl-C cancels a reply, Ctrl-D leaves, /help lists the commands."""
    from cli.chat import run_chat

    sampling = options.sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
    )
    run_chat(settings, sampling, options.limits(max_tokens=max_tokens), system=system, url=url)


@app.command()
@takes_settings(*IN_PROCESS)
def score(
    settings: Settings,
    prompt: PromptText,
    as_json: Annotated[bool, options.switch("--json", help="Print JSON, one object.")] = False,
) -> None:
    """Print the log-likelihood of each token of a text."""
    from cli.score import score_text

    score_text(settings, prompt, as_json=as_json)


@app.command()
@takes_settings("cache_dir")
def doctor(settings: Settings) -> None:
    """Say what backends and devices work here, and what to do about those that do not."""
    from cli.doctor import examine

    if not examine(settings, Console(highlight=False)):
        raise typer.Exit(1)


@app.command()
@takes_settings(*IN_PROCESS, "max_batch_size")
def bench(
    settings: Settings,
    seconds: Annotated[float, typer.Option(help="Time for each figure.", min=0.1, max=600)] = 3.0,
    as_json: Annotated[bool, options.switch("--json", help="Print JSON, one object.")] = False,
) -> None:
    """Measure a model here: tokens a second of decode at 1, 4 and 8 streams, and of prefill."""
    from cli.bench import run_bench

    run_bench(settings, seconds=seconds, as_json=as_json)


@app.command()
@takes_settings(*OWN, "api_key", "admin_key")
def chaos(
    settings: Settings,
    invocation: typer.Context,
    url: Annotated[str, typer.Option("--url", help="The server, on this machine.", metavar="URL")] = admin.LOCAL,
    own: Annotated[bool, options.switch("--own", help="Start a server to break instead, and end it.")] = False,
    faults: Annotated[
        str,
        typer.Option(
            help="Drawn from: kill, stop (suspend), abort, term; with --own also raise, nan, slow, hang, kill_in_step, "
            "stop_in_step, abort_in_step, fail_load, no_memory, disk_full, drop_message, garble_message, "
            "oversize_message, slow_link, or all. Separated by commas."
        ),
    ] = "kill,stop",
    streams: Annotated[int, typer.Option(help="Streams at once.", min=1, max=4096)] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens of each stream.", min=1, max=100_000)] = 160,
    seconds: Annotated[float, typer.Option(help="Time in which rounds are begun.", min=0.1, max=86400)] = 60.0,
    seed: Annotated[int | None, typer.Option(help="Of the faults, to strike again.", show_default=False)] = None,
    model_name: Annotated[str, typer.Option("--model-name", help="Workers of this model.", show_default=False)] = "",
    yes: Annotated[bool, options.switch("--yes", "-y", help="Do not ask before.")] = False,
    log: Annotated[
        Path | None, typer.Option("--log", help="With --own: keep its log here.", show_default=False)
    ] = None,
) -> None:
    """Break the workers of a running server, and count what the clients of its streams notice: nothing but a gap."""
    from cli.chaos.command import run_chaos, run_own

    sources = {name: invocation.get_parameter_source(name) for name in invocation.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    for name in sorted(given & ({"url", "model_name", "yes"} if own else {*OWN, "log"})):
        what = "MODEL" if name == "model" else flag(name)
        raise CommandFailed(f"{what}: not with --own" if own else f"{what}: only with --own")
    seed = secrets.randbits(32) if seed is None else seed
    if own:
        clean = run_own(
            settings,
            faults=faults,
            streams=streams,
            tokens=tokens,
            seconds=seconds,
            seed=seed,
            log=log,
            console=Console(),
        )
    else:
        clean = run_chaos(
            settings,
            url=url,
            faults=faults,
            streams=streams,
            tokens=tokens,
            seconds=seconds,
            seed=seed,
            model=model_name,
            confirm=lambda question: yes or typer.confirm(question),
            console=Console(),
        )
    if not clean:
        raise typer.Exit(1)


@app.command("compile")
@takes_settings(*IN_PROCESS, "max_batch_size", "workers")
def compile_(
    settings: Settings,
    as_json: Annotated[bool, options.switch("--json", help="Print JSON, one object.")] = False,
) -> None:
    """Compile all graphs of a model now, as `baton serve` would in its first minutes; give it the same settings."""
    from cli.compile import compile_model

    compile_model(settings, as_json=as_json)


def run() -> None:
    """Read the command line and do what it says."""
    _open_closed()
    app(prog_name="baton")


def _open_closed() -> None:
    """Give a program that was started without them standard input, output and error that lead nowhere: else the next
    files and sockets would get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115  for good
