"""Decodes bodies of `/v1/embeddings`."""

import msgspec

from gateway.errors import invalid
from gateway.generation.field_names import FieldNames, same_names
from gateway.generation.pooled.texts import input_names, pooled_request
from gateway.generation.unsupported_options import NeutralValues, refuse_options
from gateway.http.json_body import decode_body
from gateway.openai.completions.fields import prompt_inputs
from gateway.openai.embeddings.answer import EmbeddingsAnswer
from gateway.openai.embeddings.schema import EmbeddingsBody
from gateway.openai.schema import Prompt
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decoded
from protocol.errors import ErrorCode
from protocol.request import Input, Pooled

OPTIONS: NeutralValues = {
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "mm_processor_kwargs": (),
    "use_activation": (),
}
"""The values of options that change nothing, besides `null`."""
NAMES = {"prompt": "input", "messages": "input"} | same_names("dimensions")
"""The names of fields in errors."""
WHOLE_CONTEXT = -1
"""A truncation to what the model takes."""


class EmbeddingsDecoder:
    """Decodes the bodies of the endpoint. Every refusal is a `RequestError` that names its field."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._body = msgspec.json.Decoder(EmbeddingsBody)

    def embeddings(self, raw: bytes) -> Decoded:
        """Decode a body of `/v1/embeddings`."""
        body = decode_body(self._body, raw)
        if body.messages is not None:
            text = "`messages` are not embedded: send the text in `input`, as the model's own template writes it"
            raise invalid("messages", text, ErrorCode.UNSUPPORTED)
        refuse_options(body, OPTIONS, OPTIONS)
        if body.input is None:
            raise invalid("input", "`input` is required: a text, token ids, or a list of them")
        if body.prompt_name and body.input_type and body.prompt_name != body.input_type:
            raise invalid("input_type", "`input_type` and `prompt_name` differ; send one of them")
        pooled = Pooled(
            dimensions=body.dimensions or 0,
            normalize=body.normalize,
            truncate=truncation(body.truncate_prompt_tokens),
            special=body.add_special_tokens is not False,
            prompt=body.prompt_name or body.input_type or "",
        )
        inputs, names = named_inputs(body.input)
        named = {"prompt_name": "prompt_name" if body.prompt_name else "input_type"}
        request = pooled_request(
            self._settings,
            len(raw),
            model=body.model or "",
            inputs=inputs,
            names=names,
            pooled=pooled,
            cache_salt=body.cache_salt or "",
            fields=FieldNames(NAMES | named),
        )
        return Decoded(request, EmbeddingsAnswer(base64=body.encoding_format == "base64"))


def named_inputs(given: Prompt) -> tuple[list[Input], tuple[str, ...]]:
    """Return the texts of `input`, and their names in errors. Raises `RequestError`."""
    inputs = prompt_inputs(given, "input")
    several = not isinstance(given, str) and not isinstance(given[0], int)
    return inputs, input_names("input", len(inputs), several=several)


def truncation(given: int | None) -> int | None:
    """The tokens that are kept of a longer text, as `Pooled.truncate` has them. Raises `RequestError` for none."""
    if given == 0:
        raise invalid("truncate_prompt_tokens", "`truncate_prompt_tokens` is 1 and up, or -1 for what the model takes")
    return 0 if given == WHOLE_CONTEXT else given
