"""The names of request fields in errors: workers and the gateway's core have one name for each, and every dialect its
own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import RequestError
from protocol.errors import ErrorCode

FIELDS = (
    "allowed_token_ids",
    "bad_words",
    "deadline_ms",
    "dimensions",
    "dry_allowed_length",
    "dry_base",
    "dry_multiplier",
    "dry_range",
    "dry_sequence_breakers",
    "frequency_penalty",
    "instruction",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "messages",
    "min_p",
    "min_tokens",
    "model",
    "n",
    "presence_penalty",
    "prompt",
    "prompt_embeds",
    "prompt_logprobs",
    "prompt_name",
    "repetition_penalty",
    "resume",
    "seed",
    "sparse_prefill",
    "sparse_prefill_keep",
    "stop",
    "stream",
    "suffix",
    "temperature",
    "thinking_token_budget",
    "tokens",
    "tools",
    "top_k",
    "top_p",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
)
"""The fields that errors of workers and of `gateway.generation` name, besides those that a dialect named itself, such
as that of a grammar. Texts have them in backticks."""
_QUOTED = re.compile(rf"`({'|'.join(FIELDS)})(?=[`.\[])")


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names of `FIELDS` in one dialect."""

    names: Mapping[str, str]
    """A field that the dialect does not have is left out: errors do not name it."""

    def name(self, given: str) -> str:
        """The name of a field for the client; empty for one that it does not have. One that is not of `FIELDS` is the
        dialect's own."""
        return self.names.get(given, "") if given in FIELDS else given

    def error(self, code: ErrorCode, text: str, field: str = "", *, retry_after_s: int | None = None) -> RequestError:
        """The error of a request whose `field` is at fault, in the words of the dialect."""
        return RequestError(code, _QUOTED.sub(self._quoted, text), field=self.name(field), retry_after_s=retry_after_s)

    def _quoted(self, found: re.Match[str]) -> str:
        return f"`{self.name(found[1]) or found[1]}"


def same_names(*fields: str) -> dict[str, str]:
    """The names of fields that a dialect calls as workers do."""
    return {each: each for each in fields}


WORKER_NAMES = FieldNames(same_names(*FIELDS))
"""The names as workers have them."""
