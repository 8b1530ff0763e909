"""The names of fields in errors. A client that gave one by the name of another server reads that name."""

from typing import Any

from gateway.errors import invalid
from gateway.generation.field_names import FIELDS, FieldNames, same_names
from gateway.openai.schema import ChatBody, CompletionBody

Body = CompletionBody | ChatBody

LIMIT_NAMES = ("max_completion_tokens", "max_tokens", "n_predict")
"""The names of the limit of tokens, by which clients of several servers give it."""
REASONING_LIMIT_NAMES = ("thinking_token_budget", "reasoning_budget")
"""The names of the limit of reasoning: vLLM's and llama.cpp's."""
REPETITION_NAMES = ("repetition_penalty", "repeat_penalty")
TYPICAL_NAMES = ("typical_p", "typ_p")
_SEVERAL = {
    "max_tokens": LIMIT_NAMES,
    "repetition_penalty": REPETITION_NAMES,
    "thinking_token_budget": REASONING_LIMIT_NAMES,
    "typical_p": TYPICAL_NAMES,
}
_OWN = same_names(*FIELDS) | {"dry_range": "dry_penalty_last_n"}
_NO_FIELDS = ("deadline_ms", "dimensions", "instruction", "prompt_name", "resume", "stream", "tokens")
"""Names of workers for what no client sends."""


def _without(*fields: str) -> dict[str, str]:
    return {name: own for name, own in _OWN.items() if name not in (*_NO_FIELDS, *fields)}


CHAT = _without("prompt_embeds", "suffix") | {"prompt": "messages"}
COMPLETION = _without("thinking_token_budget", "tools") | {"messages": "prompt"}
QUERY = FieldNames(same_names("messages", "prompt", "tokens", "tools"))
"""The names in queries for the tokens or the text of a prompt."""
CONTENT = FieldNames({"prompt": "content", "messages": "content"})
"""The names in such a query of a client of llama.cpp."""
SCORE = FieldNames({"prompt": "prompt", "messages": "prompt", "prompt_logprobs": "prompt"})
"""The names in `/v1/score`."""


def one_of(body: Body, *names: str) -> tuple[str, Any]:
    """An option that has several names: the name that was used and the value, or None. Raises `RequestError` if two of
    them differ."""
    given = [(name, value) for name in names if (value := getattr(body, name, None)) is not None]
    for name, value in given[1:]:
        if value != given[0][1]:
            raise invalid(name, f"`{name}` and `{given[0][0]}` differ; send one of them")
    return given[0] if given else (names[0], None)


def field_names(body: Body, **others: str) -> FieldNames:
    """Return the names that the sender of a body knows. `others` are those of fields that it asked for by another
    field."""
    names = CHAT if isinstance(body, ChatBody) else COMPLETION
    return FieldNames(names | {name: _used_name(body, name) for name in _SEVERAL if name in names} | others)


def _used_name(body: Body, name: str) -> str:
    """The name by which the sender of a body gave an option that has several names, or could give it."""
    used, value = one_of(body, *_SEVERAL[name])
    return name if value is None else used
