"""Generation requests, independent of the API dialect."""

from dataclasses import dataclass, field

from gateway.generation.field_names import WORKER_NAMES, FieldNames
from protocol.commands import SamplingDefault
from protocol.request import Grammar, Input, Limits, Pooled, Sampling


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence that a request asks for, before the router gives it a number."""

    input: Input
    sampling: Sampling
    limits: Limits
    cache_salt: str = ""
    """KV is shared only between requests of the same API key with the same salt."""
    grammar: Grammar | None = None
    unset: tuple[SamplingDefault, ...] = ()
    """Sampling parameters that the client left open."""
    prompt_logprobs: int | None = None
    """The number of most likely tokens to report with each token of the prompt; None reports none."""
    echo: bool = False
    """The client gets the text of the prompt, too. Of token ids it is that of their reports, which are required."""
    pooled: Pooled | None = None
    """The result that is computed of the prompt in place of an answer."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Options of how output is delivered: all that is kept of a request while its answer is read."""

    stream: bool = False
    """Deltas are taken as they come. Otherwise the answer is taken whole."""
    per_prompt: int = 1
    """Sequences of each prompt (`n`): those of prompt `i` are `i * n` to `i * n + n - 1`."""
    with_tokens: bool = False
    """Deltas carry token ids and log-probabilities, also where a token has added no text yet."""
    limit_field: str = "max_tokens"
    """The request field that limits the tokens of a sequence, as the dialect calls it."""
    prompt_field: str = "prompt_logprobs"
    """The request field that asks for the log-probabilities of the prompt."""
    resume_s: float = 0.0
    """Seconds that the stream is kept for its client to come back; 0 ends it with the connection."""
    kept: bool = False
    """The dialect keeps what it takes until the answer ends, so that it counts as memory of the answer until then."""
    fields: FieldNames = field(default=WORKER_NAMES, compare=False)
    """The names of fields in errors."""
    input_fields: tuple[str, ...] = ()
    """The request field of each sequence's prompt, with its place in a list, for errors about it; empty if all prompts
    are of the field that `fields` names."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The sequences that a request asks for, in the order of their index, and how their output is delivered."""

    model: str
    sequences: tuple[SequenceRequest, ...]
    output: OutputOptions = OutputOptions()
    body_copies: int = 1
    """Times that workers get what the body has. It counts as often."""
    priority: int = 0
    """Its place among the requests of its client, the lowest first, if the server has that policy."""
    at_once: int = 0
    """Sequences that are admitted when the request is; the others follow, each when one has ended. 0 admits all."""
    adapter: str = ""
    """The adapter that `model` named, once `model` is the own name of the model that has it."""
