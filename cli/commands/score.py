"""`baton score`: prints the log-likelihood of each token of a text."""

import json
import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.client.local import load_here
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings
from cli.terminal.prompt import read_prompt
from workers.local_model import LocalModel, Score


def score_text(settings: Settings, prompt: str, *, as_json: bool) -> None:
    """Print the log-likelihood of each token but the first. Raises `CommandFailed`."""
    text = read_prompt(prompt)
    model = ChosenModel.choose(settings)
    loaded = load_here(worker_spec(settings, model))
    with LocalModel.of(loaded) as opened:
        try:
            score = opened.score(text)
        except Exception as error:
            raise CommandFailed(f"the text could not be scored: {error or type(error).__name__}") from error
    if as_json:
        print(json.dumps(_report(model.name, score), allow_nan=False))
    else:
        tokenizer = loaded.tokenizer
        _print(model.name, score, [tokenizer.decode([token]) if tokenizer else "" for token in score.tokens])


def perplexity(score: Score) -> float:
    """Return the exponential of the mean negative log-likelihood.

    Infinite beyond the largest float, as of a text that the model takes for impossible; NaN for a text of one token.
    """
    count = len(score.log_likelihoods)
    try:
        return math.exp(-score.total / count) if count else math.nan
    except OverflowError:
        return math.inf


def _report(model: str, score: Score) -> dict[str, object]:
    """Return the report for JSON, which has no infinite numbers and no NaN: these become null."""
    return {
        "model": model,
        "tokens": score.tokens,
        "log_likelihoods": [_finite(each) for each in score.log_likelihoods],
        "total": _finite(score.total),
        "perplexity": _finite(perplexity(score)),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _print(model: str, score: Score, pieces: list[str]) -> None:
    table = Table("token", "text", "log-likelihood", title=model, title_justify="left")
    for token, piece, value in zip(score.tokens, pieces, (None, *score.log_likelihoods), strict=True):
        table.add_row(str(token), escape(repr(piece)), "" if value is None else f"{value:.4f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"total {score.total:.4f}, perplexity {perplexity(score):.4f}")
