"""The names of fields in errors."""

from gateway.generation.field_names import FieldNames, same_names

NAMES = FieldNames(
    same_names(
        "max_tokens",
        "messages",
        "model",
        "seed",
        "sparse_prefill",
        "sparse_prefill_keep",
        "temperature",
        "tools",
        "top_k",
        "top_p",
    )
    | {
        "prompt": "messages",
        "stop": "stop_sequences",
        "thinking_token_budget": "thinking.budget_tokens",
    }
)
