"""Decodes bodies of `/v1/classify`."""

from functools import partial

import msgspec

from gateway.errors import RequestError, invalid
from gateway.generation.field_names import FieldNames
from gateway.generation.pooled.texts import pooled_request
from gateway.generation.unsupported_options import NeutralValues, refuse_options
from gateway.http.json_body import decode_body
from gateway.openai.classify.answer import ClassifyAnswer
from gateway.openai.classify.schema import ClassifyBody
from gateway.openai.embeddings.decoding import named_inputs, truncation
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decoded
from protocol.errors import ErrorCode
from protocol.request import Pooled

OPTIONS: NeutralValues = {"activation": (True,), "mm_processor_kwargs": (), "priority": (0,), "softmax": (True,)}
"""The values of options that change nothing, besides `null`."""
NAMES = FieldNames({"prompt": "input", "messages": "input"})
"""The names of fields in errors."""


class ClassifyDecoder:
    """Decodes the bodies of the endpoint. Every refusal is a `RequestError` that names its field."""

    def __init__(self, router: Router, settings: GatewaySettings) -> None:
        self._router = router
        self._settings = settings
        self._body = msgspec.json.Decoder(ClassifyBody)

    def classify(self, raw: bytes) -> Decoded:
        """Decode a body of `/v1/classify`."""
        body = decode_body(self._body, raw)
        model = self._router.models.named_or_only(body.model)
        if body.messages is not None:
            text = "`messages` are not classified: send the text in `input`, as the model's own template writes it"
            raise invalid("messages", text, ErrorCode.UNSUPPORTED)
        refuse_options(body, OPTIONS, OPTIONS)
        if body.input is None:
            raise invalid("input", "`input` is required: a text, token ids, or a list of them")
        known = self._router.models.capabilities(self._router.models.canonical(model))
        if known is not None and not known.label_names:
            text = f"the model {model!r} does not classify texts: choose another one"
            raise RequestError(ErrorCode.UNSUPPORTED, text, field="model")
        probabilities = body.use_activation is not False
        inputs, names = named_inputs(body.input)
        request = pooled_request(
            self._settings,
            len(raw),
            model=model,
            inputs=inputs,
            names=names,
            pooled=Pooled(
                "scores",
                activate=False,
                truncate=truncation(body.truncate_prompt_tokens),
                special=body.add_special_tokens is not False,
                probabilities=probabilities,
            ),
            fields=NAMES,
            cache_salt=body.cache_salt or "",
        )
        answer = ClassifyAnswer(() if known is None else known.label_names)
        again = partial(self.classify, raw) if known is None else None
        return Decoded(request, answer, once_loaded=again)
