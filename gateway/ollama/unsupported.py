"""Options of Ollama's API that Baton does not support: accepted while they change nothing, else refused by name."""

from functools import cache

from msgspec import Struct

from gateway.generation.unsupported_options import NeutralValues, refuse_options

OPTIONS: NeutralValues = {
    "context": ([],),
    "logprobs": (False, 0),
    "mirostat": (0,),
    "penalize_newline": (True,),
    "repeat_last_n": (-1,),
    "shift": (False,),
    "template": ("",),
    "tfs_z": (1,),
    "top_logprobs": (0,),
    "truncate": (False,),
}
"""The values of each option that change nothing, besides `null`."""


@cache
def options_in(body: type[Struct]) -> tuple[str, ...]:
    """The fields of a type that are options of this kind."""
    return tuple(name for name in body.__struct_fields__ if name in OPTIONS)


def refuse_unsupported(body: Struct, at: str = "") -> None:
    """Raise `RequestError` for the first option of `OPTIONS` that `body` sets. `at` is the path before its name."""
    refuse_options(body, options_in(type(body)), OPTIONS, at)
