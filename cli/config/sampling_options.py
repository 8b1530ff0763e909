"""Command-line options of sampling, with the bounds of the wire's types."""

from typing import Annotated, Any, TypeVar

import msgspec
import typer

from cli.config.errors import InvalidOption
from cli.config.options import switch
from cli.config.settings import flag
from protocol.request import Bias, Limits, Sampling

Made = TypeVar("Made", Sampling, Limits)


def _option(*names: str, help: str, metavar: str) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel="Sampling")


MaxTokens = Annotated[
    int | None, _option("-n", "--max-tokens", help="Maximum number of tokens to generate.", metavar="N")
]
Temperature = Annotated[float, _option(help="Sampling temperature; 0 is greedy.", metavar="NUMBER")]
TopK = Annotated[int, _option(help="Sample from the k most likely tokens; 0 means all.", metavar="N")]
TopP = Annotated[
    float, _option(help="Sample from the most likely tokens with this total probability.", metavar="NUMBER")
]
MinP = Annotated[
    float,
    _option(help="Sample from tokens with this probability relative to the most likely one.", metavar="NUMBER"),
]
Seed = Annotated[int, _option(help="Random seed; the same seed gives the same tokens.", metavar="N")]
Stops = Annotated[
    list[str] | None, _option("--stop", help="End the answer before this text. Can be repeated.", metavar="TEXT")
]
PresencePenalty = Annotated[
    float, _option(help="Subtracted from the logits of tokens that were generated.", metavar="NUMBER")
]
FrequencyPenalty = Annotated[
    float, _option(help="Subtracted from a token's logit for each time it was generated.", metavar="NUMBER")
]
RepetitionPenalty = Annotated[
    float, _option(help="Above 1, makes tokens of the prompt and the answer less likely.", metavar="NUMBER")
]
LogitBias = Annotated[
    list[str] | None,
    _option("--logit-bias", help="Add BIAS to the logit of the token ID. Can be repeated.", metavar="ID=BIAS"),
]
MinTokens = Annotated[int, _option(help="Minimum number of tokens to generate.", metavar="N")]
IgnoreEos = Annotated[
    bool,
    switch("--ignore-eos", help="Continue after an end-of-sequence token.", rich_help_panel="Sampling"),
]


def sampling(**values: Any) -> Sampling:
    """Return checked sampling parameters, named as the fields of `Sampling`. Raises `InvalidOption`."""
    return _checked(Sampling(**values))


def biases(assignments: list[str] | None) -> tuple[Bias, ...]:
    """Parse the values of `--logit-bias`. Raises `InvalidOption`."""
    out = []
    for assignment in assignments or ():
        token, _, bias = assignment.partition("=")
        try:
            out.append(msgspec.convert([int(token), float(bias)], Bias))
        except msgspec.ValidationError as error:
            raise InvalidOption(f"--logit-bias: {_problem(error)}, not {assignment!r}") from error
        except ValueError as error:
            raise InvalidOption(f"--logit-bias: write ID=BIAS, both numbers, not {assignment!r}") from error
    return tuple(out)


def limits(
    *, max_tokens: int | None, stop: list[str] | None = None, ignore_eos: bool = False, min_tokens: int = 0
) -> Limits:
    """Return checked limits. Raises `InvalidOption`."""
    made = _checked(Limits(max_tokens, tuple(stop or ()), ignore_eos, min_tokens=min_tokens))
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidOption(f"--min-tokens: must be at most --max-tokens, which is {max_tokens}, not {min_tokens}")
    return made


def _checked(made: Made) -> Made:
    """Check the bounds of the wire's type, one field at a time, so that the error names the flag."""
    types = {field.name: field.type for field in msgspec.structs.fields(made)}
    for name, value in msgspec.structs.asdict(made).items():
        try:
            msgspec.convert(msgspec.to_builtins(value), types[name])
            msgspec.msgpack.encode(value)  # fails for text that is not valid Unicode
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            shown = ", ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)
            raise InvalidOption(f"{flag(name)}: {_problem(error)}, not {shown}") from error
    return made


def _problem(error: msgspec.ValidationError | UnicodeEncodeError) -> str:
    """Describe what is expected, without the place in the structure."""
    if isinstance(error, UnicodeEncodeError):
        return "expected UTF-8"
    text = str(error).partition(" - at")[0].replace("`", "")
    return text[0].lower() + text[1:]
