"""The names of fields in errors."""

from gateway.generation.field_names import FieldNames, same_names

NAMES = FieldNames(
    same_names(
        "frequency_penalty",
        "min_p",
        "model",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "sparse_prefill",
        "sparse_prefill_keep",
        "stop",
        "temperature",
        "tools",
        "top_k",
        "top_p",
    )
    | {
        "logprobs": "top_logprobs",
        "max_tokens": "max_output_tokens",
        "messages": "input",
        "prompt": "input",
    }
)
