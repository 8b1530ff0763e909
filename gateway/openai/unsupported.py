"""Options of OpenAI's API and of other servers that Baton does not support: accepted while they change nothing, else
refused by name."""

from functools import cache
from typing import Any, get_type_hints

from msgspec import Struct

from gateway.generation.unsupported_options import refuse_options

OPTIONS: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "annotations": ([],),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "continuous_usage_stats": (False,),
    "documents": ([],),
    "draft_model": (),
    "dynatemp_range": (0,),
    "echo": (False,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "format": ("",),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "id_slot": (-1,),
    "logits_processors": ([],),
    "lora": ([],),
    "min_keep": (0, 1),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "modalities": (["text"],),
    "n_probs": (0,),
    "num_beams": (1,),
    "options": ({},),
    "post_sampling_probs": (False,),
    "prediction": (),
    "prefix": (False,),
    "provider_specific_fields": ({},),
    "reasoning_details": ([],),
    "repeat_last_n": (-1,),
    "return_progress": (False,),
    "return_tokens": (False,),
    "return_tokens_as_token_ids": (False,),
    "samplers": (),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "smoothing_factor": (0,),
    "store": (False,),
    "t_max_predict_ms": (0, -1),
    "tfs": (1,),
    "tfs_z": (1,),
    "think": (),
    "thinking_blocks": ([],),
    "timings_per_token": (False,),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""The values of each option that change nothing, besides `null`."""

COUNTERPARTS = {
    "format": "send `response_format`",
    "function_call": "send `tool_choice`",
    "functions": "send `tools`",
    "grammar": "GBNF is not known here: send a grammar in Lark's format as `guided_grammar`",
    "n_probs": "send `logprobs`",
    "options": "send its fields in the body itself",
    "return_tokens": "send `return_token_ids`",
    "think": "send `enable_thinking`",
}
"""Fields that a request may send in place of an option."""


class UnsupportedOptions(Struct, kw_only=True):
    """The options of this kind that both endpoints accept."""

    # OpenAI
    service_tier: Any = None
    store: Any = None
    # vLLM
    logits_processors: Any = None
    return_tokens_as_token_ids: Any = None
    skip_special_tokens: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    # llama.cpp
    dynatemp_range: Any = None
    grammar: Any = None
    id_slot: Any = None
    lora: Any = None
    min_keep: Any = None
    mirostat: Any = None
    n_probs: Any = None
    post_sampling_probs: Any = None
    repeat_last_n: Any = None
    return_progress: Any = None
    return_tokens: Any = None
    samplers: Any = None
    t_max_predict_ms: Any = None
    timings_per_token: Any = None
    top_n_sigma: Any = None
    # Text generation web UI and SillyTavern
    epsilon_cutoff: Any = None
    eta_cutoff: Any = None
    mirostat_mode: Any = None
    num_beams: Any = None
    smoothing_factor: Any = None
    tfs: Any = None
    tfs_z: Any = None
    top_a: Any = None
    # Ollama and LM Studio
    draft_model: Any = None
    format: Any = None
    options: Any = None
    think: Any = None


@cache
def options_of(body: type[Struct]) -> tuple[str, ...]:
    """The fields of a body that are options of this kind. A field of a type of its own is supported there."""
    types = get_type_hints(body)
    return tuple(name for name in body.__struct_fields__ if name in OPTIONS and types[name] is Any)


def refuse_set(body: Struct, at: str = "") -> None:
    """Raise `RequestError` for the first option of `OPTIONS` that `body` sets. `at` is the path before its name."""
    refuse_options(body, options_of(type(body)), OPTIONS, at, COUNTERPARTS)
