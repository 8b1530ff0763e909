"""Builds generation requests from what a dialect has decoded: the sequences, their seeds and their limits."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from gateway.errors import invalid
from gateway.generation.field_names import FieldNames
from gateway.generation.request import GenerationRequest, OutputOptions, SequenceRequest
from gateway.settings import GatewaySettings
from protocol.bounds import MAX_PIN_S, MAX_SEED
from protocol.commands import SamplingDefault
from protocol.errors import ErrorCode
from protocol.request import Grammar, Input, Limits, Pin, Pooled, Sampling

POOLED_AT_ONCE = 32
"""Texts of one request that are embedded or scored at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParameters:
    """Parameters that the sequences of one request have in common."""

    model: str
    inputs: Sequence[Input]
    """The prompts."""
    sampling: Sampling
    """Its seed is not used: see `seed`."""
    limits: Limits
    """Its deadline is not used: the gateway's own is."""
    output: OutputOptions
    """`per_prompt` sequences are made of each prompt."""
    seed: int | None = None
    """None: a random one."""
    cache_salt: str = ""
    priority: int = 0
    grammar: Grammar | None = None
    unset: tuple[SamplingDefault, ...] = ()
    prompt_logprobs: int | None = None
    echo: bool = False
    """See `SequenceRequest`. The first sequence of each prompt reports them; those of a streamed answer all do."""
    shared: bool = False
    """A long part of the body is in each of the inputs."""
    pooled: Pooled | None = None
    """The result that is computed of each prompt in place of an answer. The dialect bounds the number of prompts."""


def build_request(settings: GatewaySettings, wanted: RequestParameters, size: int) -> GenerationRequest:
    """Return the request that a body of `size` bytes asks for. Raises `RequestError` if it asks for too much."""
    n, inputs = wanted.output.per_prompt, wanted.inputs
    if wanted.pooled is None:
        check_fanout(settings, len(inputs), n, size, wanted.output.fields)
    # With a seed a prompt gets the same choices whatever the other prompts are; without one, equal prompts differ.
    first = secrets.randbits(63) if wanted.seed is None else wanted.seed
    seeds = (first + (index if wanted.seed is None else index % n) for index in range(len(inputs) * n))
    # The sequences share what is large about their sampling, and differ in the seed.
    sequences = tuple(
        SequenceRequest(
            inputs[index // n],
            structs.replace(wanted.sampling, seed=seed & MAX_SEED),
            wanted.limits,
            wanted.cache_salt,
            wanted.grammar,
            wanted.unset,
            wanted.prompt_logprobs if index % n == 0 or wanted.output.stream else None,
            wanted.echo and (index % n == 0 or wanted.output.stream),
            wanted.pooled,
        )
        for index, seed in enumerate(seeds)
    )
    copies = n * len(inputs) if wanted.shared else n
    at_once = 0 if wanted.pooled is None else POOLED_AT_ONCE
    return GenerationRequest(wanted.model, sequences, wanted.output, copies, wanted.priority, at_once)


def retention_pins(retention: str | None, messages: int) -> tuple[Pin, ...]:
    """Return what OpenAI's `prompt_cache_retention` keeps of a chat of so many messages: all for a day with `24h`. Any
    other value leaves it to the server, as OpenAI's `in_memory` does."""
    return (Pin(messages, MAX_PIN_S),) if retention == "24h" else ()


def stop_strings(given: str | Sequence[str | None] | None) -> tuple[str, ...]:
    """Return the stop strings. Empty ones and nulls, which forms send for "none", are left out."""
    strings = (given,) if isinstance(given, str) else given or ()
    return tuple(each for each in strings if each)


def resumable_for(settings: GatewaySettings, wanted: float, field: str) -> float:
    """Return the seconds that a stream is kept for its client. Raises `RequestError` for more than the gateway
    allows."""
    most = settings.resume_most_s
    if wanted > most:
        kept = f"for {most:g} s at most" if most else "not"
        raise invalid(field, f"`{field}`: streams are kept {kept} here")
    return wanted


def check_fanout(settings: GatewaySettings, prompts: int, n: int, size: int, fields: FieldNames) -> None:
    """Raise `RequestError` if `n` sequences of each of so many prompts are too many for a body of `size` bytes.
    `fields` are the names of its dialect."""
    count = prompts * n
    field = "n" if n > 1 else "prompt"
    if count > settings.max_choices:
        number = fields.name("n")
        times = f"prompts times {number}, {prompts} x {n}, are " if number else ""
        text = f"{times}{count} sequences; one request may have {settings.max_choices}"
    elif count > 1 and count * size > min(settings.max_fanout_bytes, settings.max_total_body_bytes):
        text = f"{count} sequences of a body of {size} bytes are too much for one request"
    else:
        return
    raise fields.error(ErrorCode.INVALID, text, field)
