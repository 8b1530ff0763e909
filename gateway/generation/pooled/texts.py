"""Builds requests for what is computed of texts."""

import dataclasses
from collections.abc import Sequence

from msgspec import structs

from gateway.errors import invalid
from gateway.generation.builder import RequestParameters, build_request
from gateway.generation.field_names import FieldNames
from gateway.generation.request import GenerationRequest, OutputOptions
from gateway.settings import GatewaySettings
from protocol.request import Input, Limits, Pooled, Sampling, TextInput, TokensInput

MAX_INPUTS = 2048
"""Texts of one request, as OpenAI allows."""


def input_names(field: str, count: int, *, several: bool) -> tuple[str, ...]:
    """The names of the texts of a field, in errors."""
    return tuple(f"{field}[{index}]" for index in range(count)) if several else (field,) * count


def pooled_request(
    settings: GatewaySettings,
    size: int,
    *,
    model: str,
    inputs: Sequence[Input],
    names: tuple[str, ...],
    pooled: Pooled,
    fields: FieldNames,
    cache_salt: str = "",
    prompts: Sequence[str] = (),
) -> GenerationRequest:
    """Return the request for what is computed of texts, of a body of `size` bytes. `prompts` names that of each text in
    place of the one in `pooled`. Raises `RequestError` for too many texts, and for empty ones."""
    if len(inputs) > MAX_INPUTS:
        field = fields.name("prompt")
        raise invalid(field, f"`{field}` has {len(inputs)} texts; one request may have {MAX_INPUTS}")
    for source, name in zip(inputs, names, strict=True):
        if (isinstance(source, TextInput) and not source.text) or (
            isinstance(source, TokensInput) and not source.tokens
        ):
            raise invalid(name, f"`{name}` is empty")
    wanted = RequestParameters(
        model=model,
        inputs=inputs,
        sampling=Sampling(),
        limits=Limits(max_tokens=0),
        output=OutputOptions(limit_field=fields.name("prompt"), fields=fields, input_fields=names),
        cache_salt=cache_salt,
        pooled=pooled,
    )
    request = build_request(settings, wanted, size)
    if not any(prompts):
        return request
    kinds = {name: structs.replace(pooled, prompt=name) for name in prompts}
    sequences = tuple(
        dataclasses.replace(each, pooled=kinds[name]) for each, name in zip(request.sequences, prompts, strict=True)
    )
    return dataclasses.replace(request, sequences=sequences)
