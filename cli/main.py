"""The command `baton`: declares the options of each command, whose implementation is imported when it runs."""

import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton_serve import __version__
from cli.commands import admin, keys
from cli.config import generation_options, sampling_options
from cli.config.errors import CommandFailed, InvalidOption
from cli.config.number import number_of
from cli.config.options import flags_given, switch, takes_settings
from cli.config.settings import ENGINE, JOINING, LIMITS, MODEL, SERVER, Settings, flag, of_panels
from cli.config.typer_app import App
from cli.terminal.standard_streams import open_standard_streams

app = App(
    name="baton",
    help="Serve language models over HTTP from isolated worker processes, with IREE or MLX.\n\n"
    "Without MODEL, commands use a small built-in model. A setting can be a flag (--max-batch-size 8), a variable "
    "(BATON_MAX_BATCH_SIZE=8) or a line of baton.toml (max_batch_size = 8).",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(admin.app, name="admin")
app.add_typer(keys.app, name="keys")

IN_PROCESS = (
    *("model", "backend", "device", "dtype", "quantize", "context", "threads", "cache_dir"),
    *("tool_parser", "reasoning_parser"),
)
"""The settings of a command that runs a model in its own process."""
OWN = (*IN_PROCESS, "max_batch_size", "workers", "standby")
"""The settings of a command that starts its own server."""
LOCAL = "http://127.0.0.1:8000"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Use the model of a running server instead of loading one here.",
        metavar="URL",
    ),
]
PromptText = Annotated[str, typer.Option("-p", "--prompt", help="The prompt; - reads standard input.", metavar="TEXT")]
System = Annotated[str, typer.Option(help="System message of the chat.", metavar="TEXT", show_default=False)]
Json = Annotated[bool, switch("--json", help="Print one JSON object.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"baton {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, switch("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Declare the options of `baton` itself."""


@app.command()
@takes_settings(*of_panels(MODEL, ENGINE, SERVER, LIMITS))
def serve(
    settings: Settings,
    take_over: Annotated[
        bool,
        switch("--take-over", help="Take over the port of a running server once the workers are ready."),
    ] = False,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API."""
    from cli.commands.serve import run_server

    run_server(settings, take_over=take_over)


@app.command()
@takes_settings(*of_panels(MODEL, ENGINE, JOINING), "hang_timeout_s", "log_level")
def worker(settings: Settings) -> None:
    """Run a worker for a gateway on another machine."""
    from cli.commands.worker import run_worker

    run_worker(settings)


@app.command()
@takes_settings(*IN_PROCESS)
def generate(
    settings: Settings,
    invocation: typer.Context,
    prompt: PromptText,
    max_tokens: sampling_options.MaxTokens = 128,
    temperature: sampling_options.Temperature = 0.0,
    top_k: sampling_options.TopK = 0,
    top_p: sampling_options.TopP = 1.0,
    min_p: sampling_options.MinP = 0.0,
    seed: sampling_options.Seed = 0,
    presence_penalty: sampling_options.PresencePenalty = 0.0,
    frequency_penalty: sampling_options.FrequencyPenalty = 0.0,
    repetition_penalty: sampling_options.RepetitionPenalty = 1.0,
    logit_bias: sampling_options.LogitBias = None,
    min_tokens: sampling_options.MinTokens = 0,
    stop: sampling_options.Stops = None,
    ignore_eos: sampling_options.IgnoreEos = False,
    no_chat_template: Annotated[
        bool, switch("--no-chat-template", help="Continue the prompt as plain text, without the chat template.")
    ] = False,
    system: System = "",
    stats: Annotated[bool, switch("--stats", help="Print token counts and speed on stderr.")] = False,
    json_schema: generation_options.JsonSchema = None,
    tools: generation_options.Tools = None,
    reasoning: generation_options.Reasoning = generation_options.DEFAULT_REASONING,
    url: Url = None,
) -> None:
    """Answer one prompt and exit."""
    from cli.commands.generate import answer_once, request_from

    _check_url(url, invocation)
    sampling = sampling_options.sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        logit_bias=sampling_options.biases(logit_bias),
    )
    limits = sampling_options.limits(max_tokens=max_tokens, stop=stop, ignore_eos=ignore_eos, min_tokens=min_tokens)
    request = request_from(
        prompt,
        sampling,
        limits,
        system=system,
        chat=not no_chat_template,
        grammar=generation_options.schema_grammar(json_schema),
        tools=generation_options.tools_json(tools),
    )
    answer_once(settings, request, url=url, stats=stats, reasoning=generation_options.reasoning_mode(reasoning))


@app.command()
@takes_settings(*IN_PROCESS)
def chat(
    settings: Settings,
    invocation: typer.Context,
    max_tokens: sampling_options.MaxTokens = 512,
    temperature: sampling_options.Temperature = 0.0,
    top_k: sampling_options.TopK = 0,
    top_p: sampling_options.TopP = 1.0,
    min_p: sampling_options.MinP = 0.0,
    seed: sampling_options.Seed = 0,
    presence_penalty: sampling_options.PresencePenalty = 0.0,
    frequency_penalty: sampling_options.FrequencyPenalty = 0.0,
    repetition_penalty: sampling_options.RepetitionPenalty = 1.0,
    system: System = "",
    json_schema: generation_options.JsonSchema = None,
    tools: generation_options.Tools = None,
    tool_command: generation_options.ToolCommandLine = None,
    tool_timeout_s: generation_options.ToolTimeout = 60.0,
    reasoning: generation_options.Reasoning = generation_options.DEFAULT_REASONING,
    url: Url = None,
) -> None:
    """Chat with a model. Ctrl-C cancels a reply, Ctrl-D or /exit leaves, /help lists more commands."""
    from cli.commands.chat import run_chat
    from cli.terminal.conversation import Conversation

    _check_url(url, invocation)
    if tools is None and (tool_command is not None or "tool_timeout_s" in flags_given(invocation)):
        given = "--tool-timeout-s" if tool_command is None else "--tool-command"
        raise InvalidOption(f"{given}: goes with --tools, which describes the tools to the model")
    sampling = sampling_options.sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
    )
    conversation = Conversation(
        sampling,
        sampling_options.limits(max_tokens=max_tokens),
        system,
        grammar=generation_options.schema_grammar(json_schema),
        tools=generation_options.tools_json(tools),
        reasoning_mode=generation_options.reasoning_mode(reasoning),
    )
    run_chat(settings, conversation, url=url, tool_command=tool_command, tool_timeout_s=tool_timeout_s)


@app.command()
@takes_settings(*IN_PROCESS)
def score(
    settings: Settings,
    prompt: PromptText,
    as_json: Json = False,
) -> None:
    """Print the log-likelihood of each token of a text."""
    from cli.commands.score import score_text

    score_text(settings, prompt, as_json=as_json)


@app.command()
@takes_settings("cache_dir")
def doctor(settings: Settings) -> None:
    """Check which backends and devices work on this machine, and what the others need."""
    from cli.commands.doctor import examine

    if not examine(settings, Console(highlight=False)):
        raise typer.Exit(1)


@app.command()
@takes_settings(*IN_PROCESS, "max_batch_size")
def bench(
    settings: Settings,
    seconds: Annotated[
        float,
        typer.Option(
            help="Seconds for each measurement.", metavar="SECONDS", parser=number_of("--seconds", float, 0.1, 600)
        ),
    ] = 3.0,
    as_json: Json = False,
) -> None:
    """Measure the tokens per second of decode (1, 4 and 8 streams) and prefill on this machine, without HTTP."""
    from cli.commands.bench import run_bench

    run_bench(settings, seconds=seconds, as_json=as_json)


@app.command()
@takes_settings(*OWN, "api_key", "admin_key")
def chaos(
    settings: Settings,
    invocation: typer.Context,
    url: Annotated[
        str, typer.Option("--url", help="The server, which must run on this machine.", metavar="URL")
    ] = LOCAL,
    own: Annotated[bool, switch("--own", help="Start a server, break that one instead, and stop it.")] = False,
    faults: Annotated[
        str,
        typer.Option(
            help="Faults to choose from, separated by commas: kill, stop (suspend), abort, term. With --own also "
            "raise, nan, slow, hang, kill_in_step, stop_in_step, abort_in_step, fail_load, no_memory, disk_full, "
            "drop_message, garble_message, oversize_message, slow_link. all is every one of them.",
            metavar="FAULTS",
        ),
    ] = "kill,stop",
    streams: Annotated[
        int,
        typer.Option(help="Number of concurrent streams.", metavar="N", parser=number_of("--streams", int, 1, 4096)),
    ] = 8,
    tokens: Annotated[
        int, typer.Option(help="Tokens of each stream.", metavar="N", parser=number_of("--tokens", int, 1, 100_000))
    ] = 160,
    seconds: Annotated[
        float,
        typer.Option(
            help="Seconds until no further fault is injected.",
            metavar="SECONDS",
            parser=number_of("--seconds", float, 0.1, 86400),
        ),
    ] = 60.0,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the random choices, to repeat a run; it is printed.",
            metavar="N",
            show_default=False,
            parser=number_of("--seed", int),
        ),
    ] = None,
    model_name: Annotated[
        str,
        typer.Option("--model-name", help="Break the workers of this model only.", metavar="NAME", show_default=False),
    ] = "",
    yes: Annotated[bool, switch("--yes", "-y", help="Do not ask for confirmation.")] = False,
    log: Annotated[
        Path | None,
        typer.Option("--log", help="File for the log of the server of --own.", metavar="FILE", show_default=False),
    ] = None,
) -> None:
    """Inject faults into the workers of a server, and count what its clients notice."""
    from cli.commands.chaos import run_chaos, run_own

    for name in sorted(flags_given(invocation) & ({"url", "model_name", "yes"} if own else {*OWN, "log"})):
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
    as_json: Json = False,
) -> None:
    """Compile all graphs of a model ahead of time, for a later `baton serve` with the same settings."""
    from cli.commands.compile import compile_model

    compile_model(settings, as_json=as_json)


def _check_url(url: str | None, invocation: typer.Context) -> None:
    """Raise `InvalidOption` for flags of loading a model, if a running server is used."""
    given = flags_given(invocation) & {*IN_PROCESS} - {"model"}
    if url is not None and given:
        raise InvalidOption(f"{', '.join(map(flag, sorted(given)))}: not with --url, whose server has loaded its model")


def run() -> None:
    """Run the command line."""
    open_standard_streams()
    app(prog_name="baton")
