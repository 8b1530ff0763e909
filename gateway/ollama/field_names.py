"""The names of fields in errors. Most are among the `options`."""

from gateway.generation.field_names import FieldNames, same_names

_OPTIONS = (
    "frequency_penalty",
    "min_p",
    "presence_penalty",
    "seed",
    "sparse_prefill",
    "sparse_prefill_keep",
    "stop",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
)
_SHARED = {each: f"options.{each}" for each in _OPTIONS} | {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
}
CHAT = FieldNames(_SHARED | same_names("messages", "model", "tools") | {"prompt": "messages"})
GENERATE = FieldNames(_SHARED | same_names("model", "prompt", "suffix") | {"messages": "prompt"})
