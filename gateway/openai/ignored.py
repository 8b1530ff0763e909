"""Options that change no answer, whatever their value: accepted and ignored."""

from typing import Annotated

from msgspec import Meta, Struct

from gateway.openai.unsupported import UnsupportedOptions

MAX_LABEL = 512
MAX_METADATA = 16

Label = Annotated[str, Meta(max_length=MAX_LABEL)]


class CacheControl(Struct):
    """A mark of Anthropic's, after which a prompt may be cached. Prefixes are cached here without being marked."""

    type: Label | None = None
    ttl: Label | None = None


class IgnoredOptions(UnsupportedOptions, kw_only=True):
    """The options of this kind that both endpoints accept, beside the unsupported ones."""

    # Labels of the client.
    user: Label | None = None
    metadata: Annotated[dict[Label, Label], Meta(max_length=MAX_METADATA)] | None = None
    safety_identifier: Label | None = None
    # How long models and prompts are kept in memory, which the server decides.
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    cache_prompt: bool | None = None
    keep_alive: Label | float | None = None
    ttl: float | None = None
    n_keep: int | None = None
    n_discard: int | None = None
    # vLLM's choice of the library that follows a grammar, of which there is one here.
    guided_decoding_backend: Label | None = None
    # Details of options that are refused unless they are off: see `gateway.openai.unsupported`.
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_exponent: float | None = None
    smoothing_curve: float | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    spaces_between_special_tokens: bool | None = None
