"""Requests to the engine: token ids only, no text and no frames."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.bounds import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_DRY,
    MAX_PENALTY,
    MAX_REPETITION,
    MAX_SEED,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
    MIN_REPETITION,
)
from protocol.errors import ErrorCode
from protocol.request import Sampling
from protocol.scheduling import NORMAL, Urgency
from workers.engine.edits.dry import NO_BREAKERS, Breakers
from workers.engine.embeddings.prompt_embeddings import PromptEmbeddings, without_rows
from workers.engine.images.prompt_images import PromptImages
from workers.engine.pooled.pooled_prompt import PooledPrompt
from workers.engine.prefix_match import PinnedPrefix
from workers.engine.sparse.kept_rows import check_ranges
from workers.engine.sparse.sparse_request import SparsePrompt

GREEDY = Sampling()
EMBEDDINGS = "prompt_embeds"
"""The request field that errors name."""
SPARSE = "sparse_prefill"
"""Likewise."""
SPARSE_KEEP = "sparse_prefill_keep"
"""Likewise."""


class Constraint(Protocol):
    """Decides which tokens may come next in one sequence, as a function of its answer so far: the interface of a
    grammar.

    A new one is made each time a sequence starts or resumes, and has accepted the resumed tokens before the engine
    gets it. `accept` receives every further token of the answer in order.
    """

    def accept(self, token: int) -> None:
        """Append a token to the answer. Raises `ConstraintFailed`."""

    def fork(self) -> "Constraint | None":
        """Return a copy, to which drafted tokens are appended. None if it has a state that cannot be copied now."""

    def forced(self) -> Sequence[int]:
        """Return the tokens of the text that must come next, which may have others as well; none if it cannot tell."""

    @property
    def ended(self) -> bool | None:
        """True when the answer is complete. None if only the mask shows it; otherwise the mask can be computed later,
        together with the logits that it is applied to."""

    def mask(self) -> NDArray[np.uint32] | None:
        """Return the tokens that may follow, in the format of `workers.sampling.sample_spec.SampleSpec.mask`. None
        allows all.

        The array is not changed afterwards. The answer is complete when no token is allowed. Raises `ConstraintFailed`
        if it cannot be completed.
        """


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate."""

    stream: int
    """The caller's number of this sequence, unique among running sequences."""
    prompt: tuple[int, ...]
    """Token ids, and the numbers of rows of `embeddings`."""
    sampling: Sampling = GREEDY
    max_tokens: int | None = None
    """Maximum number of generated tokens, resumed ones included; None means up to the end of the context. With 0 the
    prompt is computed only for its log-probabilities."""
    eos: frozenset[int] = frozenset()
    """Tokens that end the answer: end-of-sequence tokens, unless they are to be ignored, and the request's own."""
    resume: tuple[int, ...] = ()
    """Tokens that an earlier run generated. They are not emitted again, and the answer continues after them."""
    tenant: str = ""
    """Owner of the request: cache rows are shared only between sequences of one tenant."""
    min_tokens: int = 0
    """Minimum number of generated tokens, resumed ones included, before a token of `eos` may be sampled."""
    constraint: Constraint | None = None
    """For this sequence alone."""
    grammar: str = ""
    """Names the grammar of `constraint`: drafts are made by the earlier answers of the tenant with the same name. Empty
    for none."""
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    """The tokens of `sampling.bad_words`: sequences that the answer may not contain."""
    breakers: Breakers = NO_BREAKERS
    """The tokens of `sampling.dry_breakers`."""
    prompt_logprobs: bool = False
    """Report the log-probabilities of the prompt's tokens; not those of a sequence that resumes tokens."""
    urgency: Urgency = NORMAL
    """Decides which sequence preempts which."""
    speculate: bool = True
    """Tokens may be drafted for it. They change nothing but the speed."""
    pins: tuple[PinnedPrefix, ...] = ()
    """Prefixes of the prompt that the prefix tier keeps, if there is one."""
    queue_s: float = math.inf
    """Seconds after which it fails, unless its prompt is being prefilled by then."""
    embeddings: PromptEmbeddings | None = None
    """The rows of embeddings in the prompt."""
    sparse: SparsePrompt | None = None
    """Computes only a part of the prompt; None computes all of it."""
    example: tuple[int, ...] = ()
    """Tokens of an answer that `grammar` allows, by which the first answer is drafted."""
    images: PromptImages | None = None
    """The images in the prompt, whose rows have numbers in it as rows of embeddings have; not beside `embeddings`."""
    pooled: PooledPrompt | None = None
    """Computes a vector of the prompt, with `max_tokens` 0; None generates an answer."""

    adapter: int = 0
    """The number of the adapter in `RunnerCapabilities.adapters`, from 1 on; 0 is none. Rows with one adapter are not
    those with another: the tenant tells them apart."""

    @property
    def has_rows(self) -> bool:
        """Some numbers of the prompt are not tokens: they stand for rows of embeddings or of images."""
        return self.embeddings is not None or self.images is not None

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """The tokens of the prompt without rows of embeddings, as penalties count them."""
        return without_rows(self.prompt) if self.has_rows else self.prompt


class ConstraintFailed(Exception):
    """Raised by a `Constraint` that allows no token although the answer is not complete. It ends the sequence."""

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text)
        self.field = field


class RequestRefused(Exception):
    """Raised by `submit` when a request is not taken. No event of its stream follows."""

    def __init__(self, code: ErrorCode, text: str, field: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.field = field


def check(request: EngineRequest, vocab_size: int, context: int, embedding_width: int = 0) -> None:
    """Refuse a request that could not run even on an idle engine. `embedding_width` as in `RunnerCapabilities`; images
    are checked by `check_images`.

    Raises `RequestRefused` (INVALID, CONTEXT or UNSUPPORTED) with the invalid field.
    """
    if request.embeddings is not None:
        _check_embeddings(request, request.embeddings, embedding_width)
    _check_tokens("prompt", request.prompt_tokens, vocab_size)
    _check_tokens("resume", request.resume, vocab_size)
    if not request.prompt:
        raise _invalid("prompt", "the prompt must have at least one token")
    if request.max_tokens is not None and request.max_tokens < 0:
        raise _invalid("max_tokens", f"`max_tokens` must be at least 0, not {request.max_tokens}")
    if request.max_tokens is not None and len(request.resume) > request.max_tokens:
        raise _invalid(
            "resume", f"{len(request.resume)} resumed tokens are more than `max_tokens`, {request.max_tokens}"
        )
    if not request.eos.isdisjoint(request.resume[:-1]):
        raise _invalid("resume", "the resumed tokens go on after an end-of-sequence token")
    if request.min_tokens < 0 or (request.max_tokens is not None and request.min_tokens > request.max_tokens):
        raise _invalid("min_tokens", f"`min_tokens` must be within 0 and `max_tokens`, not {request.min_tokens}")
    if len(request.prompt) >= context + (request.max_tokens == 0):
        text = f"prompt of {len(request.prompt)} tokens leaves no room for an answer in a context of {context}"
        if request.embeddings is not None:
            raise RequestRefused(ErrorCode.CONTEXT, text, EMBEDDINGS)
        if request.images is not None:
            raise RequestRefused(ErrorCode.CONTEXT, text, request.images.images[-1].field)
        raise RequestRefused(ErrorCode.CONTEXT, text, "prompt")
    if len(request.prompt) + len(request.resume) > context:
        text = f"prompt and resume have {len(request.prompt) + len(request.resume)} tokens, the context is {context}"
        raise RequestRefused(ErrorCode.CONTEXT, text, "resume")
    check_sampling(request.sampling)
    if request.sparse is not None:
        _check_sparse(request, request.sparse)
    biased = [each.token for each in request.sampling.logit_bias]
    _check_tokens("logit_bias", biased, vocab_size)
    _check_bad_sequences(request, vocab_size)


def check_pooled(request: EngineRequest, hidden_width: int, *, bidirectional: bool) -> None:
    """Refuse a request for what the runner does not compute: UNSUPPORTED, or INVALID with the invalid field. The
    arguments as in `RunnerCapabilities`."""
    if request.pooled is None:
        if bidirectional:
            text = "the model is an encoder and generates no text: ask for embeddings or scores"
            raise RequestRefused(ErrorCode.UNSUPPORTED, text, "prompt")
        return
    if not hidden_width:
        raise RequestRefused(ErrorCode.UNSUPPORTED, "the model has no hidden states to pool here", "prompt")
    if request.embeddings is not None or request.resume or request.prompt_logprobs or request.sparse is not None:
        text = "a prompt whose hidden states are pooled has tokens alone, and no log-probabilities"
        raise RequestRefused(ErrorCode.UNSUPPORTED, text, "prompt")
    if request.adapter:
        text = "adapters are applied to what is generated, not to hidden states that are pooled: name the model itself"
        raise RequestRefused(ErrorCode.UNSUPPORTED, text, "model")
    if request.max_tokens != 0:
        raise _invalid("max_tokens", "`max_tokens` is 0 for a prompt whose hidden states are pooled")
    types = request.pooled.token_types
    if types is not None and len(types) != len(request.prompt):
        raise _invalid("prompt", f"there are {len(types)} token types for {len(request.prompt)} tokens")


def _check_embeddings(request: EngineRequest, embeddings: PromptEmbeddings, width: int) -> None:
    if not width:
        text = "the model was loaded without --enable-prompt-embeds: prompts must have tokens only"
        raise RequestRefused(ErrorCode.UNSUPPORTED, text, EMBEDDINGS)
    if embeddings.width != width:
        raise _invalid(EMBEDDINGS, f"rows of {embeddings.width} numbers, the hidden size of the model is {width}")
    if not all(number >= 0 or embeddings.has(number) for number in request.prompt):
        raise _invalid(EMBEDDINGS, "the prompt has a row without its embeddings")
    if request.prompt_logprobs:
        text = "rows of embeddings have no log-probabilities: leave `prompt_logprobs` out"
        raise RequestRefused(ErrorCode.UNSUPPORTED, text, "prompt_logprobs")


def check_images(request: EngineRequest, images: PromptImages, max_patches: int, longest: int | None) -> None:
    """Refuse images that the model cannot take: of more than `max_patches`, or of more than `longest` tokens. Raises
    `RequestRefused` with the field of the image, or with that of an option that images exclude."""
    for image in images.images:
        placed = image.numbers and image.end <= len(request.prompt)
        if not placed or tuple(request.prompt[place] for place in image.places) != image.numbers:
            raise _invalid(image.field, "the prompt does not have the rows of the image in their place")
        if (patches := image.held.patches[image.part]) > max_patches:
            text = f"an image of {patches} patches, the model takes {max_patches} on its device: make it smaller"
            raise _invalid(image.field, text)
        if longest is not None and len(image.numbers) > longest:
            text = f"an image of {len(image.numbers)} tokens, which are computed together: {longest} are at most"
            raise RequestRefused(ErrorCode.UNSUPPORTED, text, image.field)
    if request.embeddings is not None or sum(len(each.numbers) for each in images.images) != sum(
        number < 0 for number in request.prompt
    ):
        raise _invalid(images.images[0].field, "the prompt has rows that are not those of its images")
    if request.prompt_logprobs:
        text = "rows of images have no log-probabilities: leave `prompt_logprobs` out, or the images"
        raise RequestRefused(ErrorCode.UNSUPPORTED, text, "prompt_logprobs")


def _check_sparse(request: EngineRequest, sparse: SparsePrompt) -> None:
    if request.has_rows or request.prompt_logprobs or request.max_tokens == 0:
        text = (
            "log-probabilities of the prompt, rows of embeddings, images and prompts without an answer need all of it"
        )
        raise RequestRefused(ErrorCode.UNSUPPORTED, f"`sparse_prefill`: {text}: leave it out", SPARSE)
    if sparse.kept:
        try:
            check_ranges(sparse.kept, len(request.prompt))
        except ValueError as error:
            raise _invalid(SPARSE, str(error)) from error


def check_score(tokens: Sequence[int], vocab_size: int, context: int) -> None:
    """Refuse tokens that cannot be scored. Raises `RequestRefused` (INVALID or CONTEXT) for the field "prompt"."""
    _check_tokens("prompt", tokens, vocab_size)
    if not tokens:
        raise _invalid("prompt", "the prompt must have at least one token")
    if len(tokens) > context:
        raise RequestRefused(ErrorCode.CONTEXT, f"prompt has {len(tokens)} tokens, the context is {context}", "prompt")


def check_sampling(sampling: Sampling) -> None:
    """Refuse sampling parameters out of bounds, and NaN, which the bounds of the wire let pass.

    Raises `RequestRefused` (INVALID) with the invalid field.
    """
    if not (0.0 <= sampling.temperature <= MAX_TEMPERATURE):
        bounds = f"within 0 and {MAX_TEMPERATURE}"
        raise _invalid("temperature", f"`temperature` must be {bounds}, not {sampling.temperature}")
    if not (0 <= sampling.top_k <= MAX_TOP_K):
        raise _invalid("top_k", f"`top_k` must be within 0 and {MAX_TOP_K}, not {sampling.top_k}")
    if not (0.0 < sampling.top_p <= 1.0):
        raise _invalid("top_p", f"`top_p` must be above 0 and at most 1, not {sampling.top_p}")
    if not (0.0 <= sampling.min_p <= 1.0):
        raise _invalid("min_p", f"`min_p` must be within 0 and 1, not {sampling.min_p}")
    if not (0 <= sampling.seed <= MAX_SEED):
        raise _invalid("seed", f"`seed` must be within 0 and {MAX_SEED}, not {sampling.seed}")
    _check_penalties(sampling)
    _check_truncation(sampling)
    _check_dry(sampling)
    if not (0 <= (sampling.logprobs or 0) <= MAX_TOP_LOGPROBS):
        raise _invalid("logprobs", f"`logprobs` must be within 0 and {MAX_TOP_LOGPROBS}, not {sampling.logprobs}")


def _check_penalties(sampling: Sampling) -> None:
    for name, value in (
        ("presence_penalty", sampling.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
    ):
        if not (-MAX_PENALTY <= value <= MAX_PENALTY):
            raise _invalid(name, f"`{name}` must be within {-MAX_PENALTY} and {MAX_PENALTY}, not {value}")
    penalty = sampling.repetition_penalty
    if not (MIN_REPETITION <= penalty <= MAX_REPETITION):
        text = f"`repetition_penalty` must be within {MIN_REPETITION} and {MAX_REPETITION}, not {penalty}"
        raise _invalid("repetition_penalty", text)
    if len(sampling.logit_bias) > MAX_BIASES:
        raise _invalid("logit_bias", f"`logit_bias` has {len(sampling.logit_bias)} tokens, {MAX_BIASES} are allowed")
    for each in sampling.logit_bias:
        if not (-MAX_BIAS <= each.bias <= MAX_BIAS):
            text = f"`logit_bias` of token {each.token} must be within {-MAX_BIAS} and {MAX_BIAS}, not {each.bias}"
            raise _invalid("logit_bias", text)


def _check_truncation(sampling: Sampling) -> None:
    if not (0.0 < sampling.typical_p <= 1.0):
        raise _invalid("typical_p", f"`typical_p` must be above 0 and at most 1, not {sampling.typical_p}")
    for name, value in (("xtc_probability", sampling.xtc_probability), ("xtc_threshold", sampling.xtc_threshold)):
        if not (0.0 <= value <= 1.0):
            raise _invalid(name, f"`{name}` must be within 0 and 1, not {value}")


def _check_dry(sampling: Sampling) -> None:
    bounds = {
        "dry_multiplier": (0.0, MAX_DRY),
        "dry_base": (1.0, MAX_DRY),
        "dry_allowed_length": (1, MAX_TOKENS),
        "dry_range": (0, MAX_TOKENS),
    }
    for name, (low, high) in bounds.items():
        value = getattr(sampling, name)
        if not (low <= value <= high):
            raise _invalid(name, f"`{name}` must be within {low} and {high}, not {value}")


def _check_bad_sequences(request: EngineRequest, vocab_size: int) -> None:
    """Refuse sequences that could leave no token to sample."""
    sequences = request.bad_sequences
    for sequence in sequences:
        if not sequence:
            raise _invalid("bad_words", "`bad_words` has a text without tokens")
    ends = {sequence[-1] for sequence in sequences}
    if sequences and len(ends.union(request.eos if request.min_tokens else ())) >= vocab_size:
        raise _invalid("bad_words", f"`bad_words` could ban all {vocab_size} tokens: give fewer of them")


def _check_tokens(field: str, tokens: Sequence[int], vocab_size: int) -> None:
    if tokens and (min(tokens) < 0 or max(tokens) >= vocab_size):
        wrong = next(token for token in tokens if not 0 <= token < vocab_size)
        shown = field if field == "prompt" else f"`{field}`"
        raise _invalid(field, f"{shown} has token {wrong}, the vocabulary has {vocab_size}")


def _invalid(field: str, text: str) -> RequestRefused:
    return RequestRefused(ErrorCode.INVALID, text, field)
