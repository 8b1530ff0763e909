"""`baton score`: how likely a model finds a text, token by token."""

from cli.settings import Settings


def score_text(settings: Settings, text: str, *, as_json: bool) -> None:
    """Print the log-likelihoods."""
    raise NotImplementedError
