"""One cell of the table: what a client sends for a feature, and what the code makes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from msgspec import structs

from gateway.errors import RequestError
from gateway.streaming.dialect import Decode, Decoded
from protocol.request import ChatInput


@dataclass(frozen=True)
class Sample:
    """Fields of a body that ask for a feature, by which the cell names it."""

    fields: Mapping[str, Any]
    named: str = ""
    """The name in the cell, if it is not those of the fields."""
    ignored: bool = False
    """The field changes no answer, and is accepted all the same."""


NO_FIELD = Sample({})
"""The API has no field for a feature."""
ALWAYS = Sample({}, "always")
"""Every answer has the feature, without a field."""


def of(**fields: Any) -> Sample:
    """A sample of these fields."""
    return Sample(fields)


def ignored(**fields: Any) -> Sample:
    """A sample of fields that change no answer."""
    return Sample(fields, ignored=True)


SAMPLING: Mapping[str, Sample] = {
    "Minimum of tokens": of(min_tokens=5),
    "Stop tokens": of(stop_token_ids=[5]),
    "No end of sequence": of(ignore_eos=True),
    "Temperature": of(temperature=0.5),
    "Top p": of(top_p=0.5),
    "Top k": of(top_k=5),
    "Min p": of(min_p=0.5),
    "Typical p": of(typical_p=0.5),
    "XTC": of(xtc_probability=0.5),
    "DRY": of(dry_multiplier=0.5),
    "Seed": of(seed=5),
    "Repetition penalty": of(repetition_penalty=1.5),
    "Biases of tokens": of(logit_bias={"5": 1}),
    "Words that are not generated": of(bad_words=["x"]),
    "Some tokens alone": of(allowed_token_ids=[5]),
    "Several answers": of(n=2),
    "The best of several answers": of(best_of=2),
    "Beam search": of(use_beam_search=True),
    "No speculative decoding": of(speculate=False),
    "Sparse prefill": of(sparse_prefill=True, sparse_prefill_keep=0.5),
}
"""Options of sampling: fields of a body in OpenAI's and Anthropic's APIs, and members of Ollama's `options`."""
SAME_FIELDS: Mapping[str, Sample] = {
    **SAMPLING,
    "Variables of the chat template": of(chat_template_kwargs={"thinking": True}),
    "Reasoning in the text": of(reasoning_format="none"),
    "A template of the client's own": of(chat_template="{{ messages }}"),
    "One of several texts": of(structured_outputs={"choice": ["a", "b"]}),
    "A regular expression": of(structured_outputs={"regex": "a+"}),
    "A grammar": of(structured_outputs={"grammar": 'start: "a"'}),
    "Streaming": of(stream=True),
    "Log-probabilities of the prompt": of(prompt_logprobs=1),
    "Token ids": of(return_token_ids=True),
    "A predicted answer": of(prediction={"type": "content", "content": "x"}),
    "A cache of one's own": of(cache_salt="x"),
}
"""Features that OpenAI's and Anthropic's APIs are asked for by the same fields."""


class Cell(NamedTuple):
    """The cell of a feature, and what is wrong with it: a feature that is neither honoured nor refused by name."""

    text: str
    problem: str = ""


@dataclass(frozen=True)
class Column:
    """One path of an API."""

    title: str
    decode: Callable[[], Decode]
    body: Mapping[str, Any]
    """A request that asks for nothing."""
    samples: Mapping[str, Sample] = field(default_factory=dict)
    """By feature. A feature without a sample is an error."""

    def cell(self, feature: str) -> Cell:
        """Return the cell of a feature."""
        sample = self.samples.get(feature)
        if sample is None:
            return Cell("?", "has no sample")
        if sample is NO_FIELD:
            return Cell("no field")
        if sample is ALWAYS:
            return Cell(sample.named)
        name = sample.named or ", ".join(f"`{each}`" for each in sample.fields)
        try:
            asked = _decoded(self.decode(), {**self.body, **sample.fields})
        except RequestError as error:
            root = (error.field or "").partition(".")[0].partition("[")[0]
            problem = "" if root in sample.fields else f"is refused at {error.field!r}: {error.text}"
            return Cell(f"refused: `{error.field}`", problem)
        if asked == _decoded(self.decode(), self.body):
            return Cell(f"ignored: {name}", "" if sample.ignored else "has no effect and is not refused")
        if sample.ignored:
            return Cell(name, "changes the answer, but is said to be ignored")
        idle = [each for each in sample.fields if self._without(sample, each) == asked]
        return Cell(name, f"has no effect of {idle}" if idle else "")

    def _without(self, sample: Sample, name: str) -> object:
        """Decode a sample without one of its fields; None if that is refused."""
        fields = {each: value for each, value in sample.fields.items() if each != name}
        try:
            return _decoded(self.decode(), {**self.body, **fields})
        except RequestError:
            return None


def _decoded(decode: Decode, body: Mapping[str, Any]) -> tuple[Any, Any]:
    """The request and the renderer of a body, without what differs each time."""
    with mock.patch("gateway.generation.builder.secrets.randbits", return_value=0):
        decoded = decode(msgspec.json.encode(body))
    assert isinstance(decoded, Decoded)
    request, renderer, *_ = decoded
    sequences = tuple(
        replace(each, input=structs.replace(each.input, now=0)) if isinstance(each.input, ChatInput) else each
        for each in request.sequences
    )
    return replace(request, sequences=sequences), renderer
