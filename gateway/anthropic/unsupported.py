"""Options of Anthropic's API that Baton does not support: accepted while they change nothing, else refused by name."""

from functools import cache

from msgspec import Struct

from gateway.generation.unsupported_options import NeutralValues, refuse_options

OPTIONS: NeutralValues = {
    "allowed_callers": (["direct"],),
    "billing_policy": (),
    "caller": ({"type": "direct"},),
    "citations": ([],),
    "compaction": (),
    "container": (),
    # All thinking is kept here, so an edit that keeps it changes nothing.
    "context_management": ({}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "defer_loading": (False,),
    "diagnostics": (),
    "fallback_credit_token": (),
    "fallbacks": ([],),
    "inference_geo": (),
    "input_examples": ([],),
    "mcp_servers": ([],),
    "speed": ("standard",),
    "task_budget": (),
    "thread": (),
    "toolset_name": (),
}
"""The values of each option that change nothing, besides `null`."""


@cache
def options_in(body: type[Struct]) -> tuple[str, ...]:
    """The fields of a type that are options of this kind."""
    return tuple(name for name in body.__struct_fields__ if name in OPTIONS)


def refuse_unsupported(body: Struct, at: str = "") -> None:
    """Raise `RequestError` for the first option of `OPTIONS` that `body` sets. `at` is the path before its name."""
    refuse_options(body, options_in(type(body)), OPTIONS, at)
