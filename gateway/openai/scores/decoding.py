"""Decodes bodies of `/v1/score`."""

from collections.abc import Callable, Sequence

import msgspec

from gateway.errors import invalid
from gateway.generation.builder import RequestParameters, build_request, check_fanout
from gateway.generation.field_names import FieldNames
from gateway.generation.request import OutputOptions
from gateway.http.json_body import decode_body
from gateway.openai.completions.fields import prompt_inputs
from gateway.openai.field_names import SCORE
from gateway.openai.scores.answer import ScoreAnswer, Scored
from gateway.openai.scores.schema import ScoreBody
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decoded
from protocol.bounds import MAX_TEXT, MAX_TOKENS
from protocol.request import Input, Limits, Sampling, TextInput, TokensInput


class ScoreDecoder:
    """Decodes the bodies of the endpoint. Every refusal is a `RequestError` that names its field."""

    def __init__(self, settings: GatewaySettings, compare: Callable[[ScoreBody, int], Decoded]) -> None:
        """`compare` decodes a body of so many bytes with texts that are compared."""
        self._settings = settings
        self._compare = compare
        self._body = msgspec.json.Decoder(ScoreBody)

    def score(self, raw: bytes) -> Decoded:
        """Decode a body of `/v1/score`."""
        body = decode_body(self._body, raw)
        if body.text_1 is not None or body.text_2 is not None:
            return self._compare(body, len(raw))
        for name in ("truncate_prompt_tokens", "instruction"):
            if getattr(body, name) is not None:
                text = f"`{name}` goes with `text_1` and `text_2`: log-likelihoods are of whole texts alone"
                raise invalid(name, text)
        inputs, scored = self._items(body, len(raw))
        wanted = RequestParameters(
            model=body.model or "",
            inputs=inputs,
            sampling=Sampling(),
            limits=Limits(max_tokens=0),
            output=OutputOptions(prompt_field="prompt", fields=SCORE),
            cache_salt=body.cache_salt or "",
            # One likely token shows whether the given one is the most likely.
            prompt_logprobs=1,
            shared=not _is_list(body.prompt or ""),
        )
        return Decoded(build_request(self._settings, wanted, len(raw)), ScoreAnswer(tuple(scored)))

    def _items(self, body: ScoreBody, size: int) -> tuple[list[Input], list[Scored]]:
        """Return the whole texts of a body of `size` bytes, and what is scored of each."""
        if body.prompt is None:
            raise invalid("prompt", "`prompt` is required")
        prompts = prompt_inputs(body.prompt, "prompt")
        if body.completion is None:
            return prompts, [None] * len(prompts)
        completions = prompt_inputs(body.completion, "completion")
        several = _is_list(body.completion)
        # Before a prompt is repeated for each of them.
        check_fanout(self._settings, len(completions), 1, size, FieldNames({"prompt": "completion"}))
        if len(prompts) == 1 and not _is_list(body.prompt):
            prompts *= len(completions)
        if len(prompts) != len(completions):
            text = f"there are {len(completions)} of `completion` and {len(prompts)} of `prompt`"
            raise invalid("completion", f"{text}; send as many, or one prompt that is not in a list")
        fields = [f"completion[{index}]" if several else "completion" for index in range(len(prompts))]
        joined = [_join(*each) for each in zip(prompts, completions, fields, strict=True)]
        return [each for each, _ in joined], [scored for _, scored in joined]


def _is_list(given: str | Sequence[object]) -> bool:
    """Several prompts; token ids are one."""
    return not isinstance(given, str) and not isinstance(given[0], int)


def _join(prompt: Input, completion: Input, field: str) -> tuple[Input, Scored]:
    match prompt, completion:
        case TextInput(before), TextInput(after) if after:
            _check_length(len(before) + len(after), MAX_TEXT, "characters", field)
            return TextInput(before + after), after
        case TokensInput(before), TokensInput(after):
            _check_length(len(before) + len(after), MAX_TOKENS, "tokens", field)
            return TokensInput((*before, *after)), len(after)
        case TextInput(), TextInput():
            raise invalid(field, f"`{field}` is empty")
    raise invalid(field, f"`{field}` must be of the same kind as its prompt: text, or token ids")


def _check_length(length: int, most: int, what: str, field: str) -> None:
    if length > most:
        raise invalid(field, f"`{field}` and its prompt have {length} {what}; {most} are allowed")
