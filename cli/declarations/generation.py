"""Declares `baton generate`, `baton chat` and `baton score`."""

from typing import Annotated

import typer

from cli.config import generation_options, sampling_options
from cli.config.errors import InvalidOption
from cli.config.options import IN_PROCESS, Json, flags_given, switch, takes_settings
from cli.config.settings import Settings, flag

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
    image: Annotated[
        list[str] | None,
        typer.Option("--image", help="Image file that goes with the first message. Repeatable.", metavar="FILE"),
    ] = None,
    url: Url = None,
) -> None:
    """Chat with a model. Ctrl-C cancels a reply, Ctrl-D or /exit leaves, /help lists more commands."""
    from cli.client.image_file import ImageFileInvalid
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
    for path in image or ():
        try:
            conversation.add_image(path)
        except ImageFileInvalid as error:
            raise InvalidOption(f"--image: {error}") from error
    run_chat(settings, conversation, url=url, tool_command=tool_command, tool_timeout_s=tool_timeout_s)


@takes_settings(*IN_PROCESS)
def score(
    settings: Settings,
    prompt: PromptText,
    as_json: Json = False,
) -> None:
    """Print the log-likelihood of each token of a text."""
    from cli.commands.score import score_text

    score_text(settings, prompt, as_json=as_json)


def _check_url(url: str | None, invocation: typer.Context) -> None:
    """Raise `InvalidOption` for flags of loading a model, if a running server is used."""
    given = flags_given(invocation) & {*IN_PROCESS} - {"model"}
    if url is not None and given:
        raise InvalidOption(f"{', '.join(map(flag, sorted(given)))}: not with --url, whose server has loaded its model")
