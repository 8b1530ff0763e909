"""Decodes bodies of `/v1/rerank`, and those of `/v1/score` that compare texts."""

from collections.abc import Sequence
from functools import partial

import msgspec

from gateway.errors import RequestError, invalid
from gateway.generation.field_names import FieldNames, same_names
from gateway.generation.pooled.texts import input_names, pooled_request
from gateway.generation.request import GenerationRequest
from gateway.generation.unsupported_options import NeutralValues, refuse_options
from gateway.http.json_body import decode_body
from gateway.openai.embeddings.decoding import truncation
from gateway.openai.rerank.answer import ComparisonAnswer, RerankAnswer
from gateway.openai.rerank.schema import MAX_DOCUMENTS, RerankBody
from gateway.openai.rerank.similarity import PairScores
from gateway.openai.scores.schema import ScoreBody
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decoded
from protocol.errors import ErrorCode
from protocol.request import PairInput, Pooled, TextInput

OPTIONS: NeutralValues = {
    "activation": (True,),
    "max_chunks_per_doc": (),
    "max_tokens_per_doc": (),
    "mm_processor_kwargs": (),
    "overlap_tokens": (),
    "rank_fields": (["text"],),
    "truncation": (False,),
    "use_activation": (True,),
}
"""The values of options that change nothing, besides `null`."""
QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")
"""The names of prompts for queries and for documents, the first one that a model has."""
RERANK = FieldNames({"prompt": "documents", "messages": "documents"} | same_names("instruction"))
"""The names of fields in errors."""
SCORE = FieldNames({"prompt": "text_2", "messages": "text_2"} | same_names("instruction"))


class ComparisonDecoder:
    """Decodes bodies that compare texts. Every refusal is a `RequestError` that names its field."""

    def __init__(self, router: Router, settings: GatewaySettings) -> None:
        self._router = router
        self._settings = settings
        self._body = msgspec.json.Decoder(RerankBody)

    def rerank(self, raw: bytes) -> Decoded:
        """Decode a body of `/v1/rerank`."""
        body = decode_body(self._body, raw)
        model = self._router.models.named_or_only(body.model)
        refuse_options(body, OPTIONS, OPTIONS)
        documents = [each if isinstance(each, str) else each.text for each in body.documents]
        names = input_names("documents", len(documents), several=True)
        request, scores = self._compared(
            model,
            [(body.query, each) for each in documents],
            [("query", each) for each in names],
            Pooled(truncate=truncation(body.truncate_prompt_tokens), instruction=body.instruction or ""),
            fields=RERANK,
            size=len(raw),
            cache_salt=body.cache_salt or "",
            prompts=self._prompts(model),
        )
        answer = RerankAnswer(scores, body.top_n, documents if body.return_documents else None)
        again = partial(self.rerank, raw) if self._unknown(model) else None
        return Decoded(request, answer, prepare=scores.prepare, once_loaded=again)

    def score(self, body: ScoreBody, size: int) -> Decoded:
        """Return the request of a body of `/v1/score`, of `size` bytes, that has `text_1` or `text_2`."""
        for name in ("prompt", "completion"):
            if getattr(body, name) is not None:
                raise invalid(name, f"`{name}` and `text_1` exclude each other: texts are compared, or scored")
        model = self._router.models.named_or_only(body.model)
        if body.text_1 is None or body.text_2 is None:
            missing = "text_1" if body.text_1 is None else "text_2"
            raise invalid(missing, f"`{missing}` is required")
        firsts, seconds = _texts(body.text_1), _texts(body.text_2)
        if len(firsts) not in (1, len(seconds)):
            text = f"there are {len(firsts)} of `text_1` and {len(seconds)} of `text_2`"
            raise invalid("text_1", f"{text}; send one, or as many")
        names = [
            input_names(field, len(texts), several=not isinstance(given, str))
            for field, texts, given in (("text_1", firsts, body.text_1), ("text_2", seconds, body.text_2))
        ]
        repeat = len(seconds) if len(firsts) == 1 else 1
        request, scores = self._compared(
            model,
            list(zip(firsts * repeat, seconds, strict=True)),
            list(zip(names[0] * repeat, names[1], strict=True)),
            Pooled(truncate=truncation(body.truncate_prompt_tokens), instruction=body.instruction or ""),
            fields=SCORE,
            size=size,
            cache_salt=body.cache_salt or "",
        )
        again = partial(self.score, body, size) if self._unknown(model) else None
        return Decoded(request, ComparisonAnswer(scores), prepare=scores.prepare, once_loaded=again)

    def _compared(
        self,
        model: str,
        pairs: Sequence[tuple[str, str]],
        names: Sequence[tuple[str, str]],
        pooled: Pooled,
        *,
        fields: FieldNames,
        size: int,
        cache_salt: str,
        prompts: tuple[str, str] = ("", ""),
    ) -> tuple[GenerationRequest, PairScores]:
        """Return the request for the scores of pairs of texts. `prompts` names those of the first and the second texts,
        if their embeddings are compared. Raises `RequestError`."""
        if len(pairs) > MAX_DOCUMENTS:
            field = fields.name("prompt")
            raise invalid(field, f"`{field}` has {len(pairs)} texts; one request may have {MAX_DOCUMENTS}")
        for texts, own in zip(pairs, names, strict=True):
            for text, name in zip(texts, own, strict=True):
                if not text:
                    raise invalid(name, f"`{name}` is empty")
        sources = [PairInput(*pair) for pair in pairs]
        if self._scores_pairs(model):
            pooled = msgspec.structs.replace(pooled, kind="scores")
            request = pooled_request(
                self._settings,
                size,
                model=model,
                inputs=sources,
                names=tuple(second for _, second in names),
                pooled=pooled,
                fields=fields,
                cache_salt=cache_salt,
            )
            return request, PairScores(None)
        if pooled.instruction and not self._unknown(model):
            text = "`instruction`: the model compares embeddings, which take none: leave it out"
            raise invalid("instruction", text, ErrorCode.UNSUPPORTED)
        pooled = msgspec.structs.replace(pooled, instruction="")
        # Each text once with each prompt, whatever the number of its pairs.
        places: dict[tuple[str, str], int] = {}
        own_names: list[str] = []
        for pair, named in zip(pairs, names, strict=True):
            for key, name in zip(zip(prompts, pair, strict=True), named, strict=True):
                if key not in places:
                    places[key] = len(places)
                    own_names.append(name)
        request = pooled_request(
            self._settings,
            size,
            model=model,
            inputs=[TextInput(text) for _, text in places],
            names=tuple(own_names),
            pooled=pooled,
            fields=fields,
            cache_salt=cache_salt,
            prompts=[prompt for prompt, _ in places],
        )
        before, after = prompts
        return request, PairScores([(places[before, first], places[after, second]) for first, second in pairs])

    def _prompts(self, model: str) -> tuple[str, str]:
        """Return the names of a model's prompts for queries and for documents, as sentence-transformers' `encode_query`
        and `encode_document` choose them; empty for none."""
        known = self._router.models.capabilities(self._router.models.canonical(model))
        named = () if known is None else known.pooling_prompts
        query, document = (next(filter(named.__contains__, each), "") for each in (QUERY, DOCUMENT))
        return query, document

    def _unknown(self, model: str) -> bool:
        """Return whether it is not known yet what a model can do: no worker has loaded it."""
        return self._router.models.capabilities(self._router.models.canonical(model)) is None

    def _scores_pairs(self, model: str) -> bool:
        """Return whether workers score pairs of texts, rather than that their embeddings are compared. Raises
        `RequestError` for a model that can do neither."""
        known = self._router.models.capabilities(self._router.models.canonical(model))
        if known is None:  # the body is decoded again once the model is loaded
            return False
        if not known.pairs and not known.vector_width:
            text = f"the model {model!r} neither scores pairs of texts nor makes embeddings: choose another one"
            raise RequestError(ErrorCode.UNSUPPORTED, text, field="model")
        if known.pairs and known.labels != 1:
            text = f"the model {model!r} has {known.labels} labels, not one score: use /v1/classify, or another one"
            raise RequestError(ErrorCode.UNSUPPORTED, text, field="model")
        return known.pairs


def _texts(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)
