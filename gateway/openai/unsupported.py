"""Options of OpenAI's API and of other servers that Baton does not support: accepted while they change nothing, else
refused by name."""

from functools import cache
from typing import Any

from msgspec import Struct

from gateway.generation.unsupported_options import refuse_options

OPTIONS: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "allowed_token_ids": (),
    "annotations": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "continuous_usage_stats": (False,),
    "documents": ([],),
    "draft_model": (),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "echo": (False,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "format": ("",),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "id_slot": (-1,),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "logits_processors": ([],),
    "lora": ([],),
    "min_keep": (0, 1),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "modalities": (["text"],),
    "n_probs": (0,),
    "num_beams": (1,),
    "options": ({},),
    "parallel_tool_calls": (True, False),
    "post_sampling_probs": (False,),
    "prediction": (),
    "prefix": (False,),
    "priority": (0,),
    "prompt_logprobs": (),
    "provider_specific_fields": ({},),
    "reasoning": ("",),
    "reasoning_content": ("",),
    "reasoning_details": ([],),
    "reasoning_effort": ("none",),
    "refusal": ("",),
    "repeat_last_n": (-1,),
    "response_format": ({"type": "text"},),
    "return_progress": (False,),
    "return_tokens": (False,),
    "return_tokens_as_token_ids": (False,),
    "samplers": (),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "smoothing_factor": (0,),
    "stop_token_ids": ([],),
    "store": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "t_max_predict_ms": (0, -1),
    "tfs": (1,),
    "tfs_z": (1,),
    "think": (),
    "thinking_blocks": ([],),
    "timings_per_token": (False,),
    "tool_call_id": ("",),
    "tool_calls": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "truncate_prompt_tokens": (),
    "typ_p": (1,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "xtc_probability": (0,),
}
"""The values of each option that change nothing, besides `null`."""


class UnsupportedOptions(Struct, kw_only=True):
    """The options of this kind that both endpoints accept."""

    # OpenAI
    service_tier: Any = None
    store: Any = None
    # vLLM
    allowed_token_ids: Any = None
    bad_words: Any = None
    best_of: Any = None
    echo: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    include_stop_str_in_output: Any = None
    logits_processors: Any = None
    priority: Any = None
    prompt_logprobs: Any = None
    return_tokens_as_token_ids: Any = None
    skip_special_tokens: Any = None
    stop_token_ids: Any = None
    structured_outputs: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    # llama.cpp
    dry_multiplier: Any = None
    dynatemp_range: Any = None
    grammar: Any = None
    id_slot: Any = None
    json_schema: Any = None
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
    typ_p: Any = None
    xtc_probability: Any = None
    # Text generation web UI and SillyTavern
    epsilon_cutoff: Any = None
    eta_cutoff: Any = None
    mirostat_mode: Any = None
    num_beams: Any = None
    smoothing_factor: Any = None
    tfs: Any = None
    tfs_z: Any = None
    top_a: Any = None
    typical_p: Any = None
    # Ollama and LM Studio
    draft_model: Any = None
    format: Any = None
    options: Any = None
    think: Any = None


@cache
def options_of(body: type[Struct]) -> tuple[str, ...]:
    """The fields of a body that are options of this kind."""
    return tuple(name for name in body.__struct_fields__ if name in OPTIONS)


def refuse_set(body: Struct, at: str = "") -> None:
    """Raise `RequestError` for the first option of `OPTIONS` that `body` sets. `at` is the path before its name."""
    refuse_options(body, options_of(type(body)), OPTIONS, at)
