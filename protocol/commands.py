"""Commands from the gateway to a worker: a closed union, decoded by `protocol.codec.decode_command`."""

import hashlib
from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol.bounds import (
    MAX_ADAPTER_PATHS,
    MAX_ADAPTERS,
    MAX_TOKENS,
    MAX_TOP_LOGPROBS,
    Count,
    FilePath,
    Label,
    Milliseconds,
    Name,
    RangeBounds,
    Reason,
    RowBytes,
    RowsDigest,
    RowTokens,
    StreamId,
    Tokens,
)
from protocol.request import Grammar, Input, Limits, Pooled, Sampling
from protocol.scheduling import MAX_PRIORITY, PriorityClass, Urgency

TENANT_SALT = ":"
"""In a tenant, between the client and what tells the client's tenants apart."""
ADAPTER_BYTES = 8
"""Bytes of the digest of an adapter's name in a tenant."""


def client_of(tenant: str) -> str:
    """Return the client of a tenant: those of one client have one key."""
    return tenant.partition(TENANT_SALT)[0]


def adapted_tenant(tenant: str, adapter: str) -> str:
    """Return the tenant of a request with an adapter, of the same client: its cache rows are not those without one, nor
    those with another."""
    if not adapter:
        return tenant
    salt = hashlib.blake2b(adapter.encode(), digest_size=ADAPTER_BYTES).hexdigest()
    return f"{tenant}{TENANT_SALT}{salt}"


class Welcome(Struct, frozen=True, array_like=True, tag="welcome", omit_defaults=True, gc=False):
    """Answer to `Hello`. An empty `refusal` admits the worker; otherwise it is the reason why the worker must exit."""

    incarnation: StreamId
    refusal: Reason = ""


SamplingDefault = Literal["temperature", "top_k", "top_p", "min_p", "repetition_penalty"]
"""Sampling parameters for which a checkpoint may recommend a value."""


class Submit(Struct, frozen=True, array_like=True, tag="submit", omit_defaults=True):
    """Start one sequence. Has everything that a new worker needs, so that it can be sent again to another one."""

    stream: StreamId
    """The gateway's number of this sequence, in every event about it."""
    request: Name
    """The public request id, for logs."""
    input: Input
    sampling: Sampling
    limits: Limits
    resume: Tokens = ()
    """Tokens already delivered to the client: generation continues after them, and they count as generated."""
    tenant: Label = ""
    """Owner of the request; prefixes are never shared between tenants. Those of one client are equal up to
    `TENANT_SALT`."""
    grammar: Grammar | None = None
    unset: Annotated[tuple[SamplingDefault, ...], Meta(max_length=5)] = ()
    """Parameters that the client left open: the value that the checkpoint recommends, if any, replaces that of
    `sampling`."""
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """Report log-probabilities of the prompt's tokens and of this many most likely ones at each position, in
    `PromptLogprobs`; None reports none."""
    priority_class: PriorityClass = "normal"
    """The priority class of the client's key."""
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    """The priority among the requests of its class: the lower, the more urgent. It lets a request preempt only those of
    its own client."""
    suspect: bool = False
    """The gateway attributes the next death of the worker to this sequence, which may have caused an earlier one."""
    kept: RangeBounds | None = None
    """The ranges of the prompt that an earlier worker has computed, all of it if there are none: what `Limits` say of
    sparse prefill is decided. None if nothing was computed yet."""
    adapter: Label = ""
    """The adapter that is applied to the model for this sequence, one of `Ready.adapters`; empty for none. The `tenant`
    is one of `adapted_tenant` then."""

    pooled: Pooled | None = None
    """Compute this of the prompt, which `Finished.vector` has, and generate nothing. None generates an answer."""

    @property
    def urgency(self) -> Urgency:
        """The urgency of the request."""
        return Urgency.of(self.priority_class, self.priority)


class Tokenize(Struct, frozen=True, array_like=True, tag="tokenize", omit_defaults=True):
    """Ask for the tokens of a prompt, or for its text. Nothing is generated, so that it can be asked again, of any
    worker. The worker sends one `Tokenized`, when no sequence waits for its prompt."""

    query: StreamId
    """The gateway's number of this query. It is random: no other query has it, of whichever gateway."""
    request: Name
    """The public request id, for logs."""
    input: Input
    want: Literal["count", "tokens", "text"] = "count"
    """The answer that is wanted beside the number of tokens. The text of messages is the prompt that the template makes
    of them; that of tokens is what they stand for."""
    special: bool = True
    """Add the tokens that the model expects around a plain prompt to a `TextInput`, as for generation."""


class Cancel(Struct, frozen=True, array_like=True, tag="cancel", gc=False):
    """End a sequence now. An unknown or ended stream is ignored, because this race is normal."""

    stream: StreamId


class Drain(Struct, frozen=True, array_like=True, tag="drain", gc=False):
    """Admit no more requests, finish the running ones, then send `Bye`. Requests that outlast the grace fail."""

    grace_ms: Milliseconds


class Stop(Struct, frozen=True, array_like=True, tag="stop", gc=False):
    """Fail running requests with `DRAINING`, send `Bye` and exit."""


class ReadRows(Struct, frozen=True, array_like=True, tag="read", gc=False):
    """Ask for cache rows of a running sequence, to hand them over to another worker. The worker answers with one
    `Rows`; also a draining one does."""

    query: StreamId
    """The gateway's number of this question. It is random, as that of a `Tokenize`."""
    transfer: StreamId
    """The gateway's number of the transfer, a random one, which the digest covers."""
    stream: StreamId
    """The sequence."""
    start: Count
    """The first row."""
    most: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    """The number of rows; the answer has fewer where the sequence does, or where they are too many bytes."""
    state: bool = False
    """Ask for bytes `start .. start + most` of the recurrent state instead. Those from 0 on are of the state after the
    rows that the sequence has then, and the following ones of the same state."""


class WriteRows(Struct, frozen=True, array_like=True, tag="write", gc=False):
    """Append cache rows that another worker has computed to those of a transfer, for reuse by sequences of the tenant
    that begin with these tokens. The worker answers with one `RowsWritten`. Without tokens and rows it ends a transfer
    that has failed: the worker refuses it, and frees rows whose recurrent state is missing."""

    query: StreamId
    """The gateway's number of this question."""
    transfer: StreamId
    """The transfer: its rows follow one another."""
    tenant: Label
    """Owner of the rows."""
    start: Count
    """The first row; 0 begins a transfer."""
    tokens: RowTokens
    """The tokens of the rows; those of images have numbers below 0."""
    rows: RowBytes
    """The rows, in the format of both workers."""
    digest: RowsDigest
    """That of `Rows`."""
    state: Count = 0
    """If it is not 0, `rows` are bytes of the recurrent state after so many rows of the transfer, from byte `start` on:
    parts follow one another."""


class LoadAdapter(Struct, frozen=True, array_like=True, tag="load", gc=False):
    """Read an adapter, which `Submit.adapter` may name from the answer on, in place of the one that had this number.
    Only for a worker with `Ready.adapter_places`. The worker answers with one `AdapterChanged`."""

    query: StreamId
    """The gateway's number of this question."""
    name: Name
    """The name of this version of the adapter."""
    number: Annotated[int, Meta(ge=1, le=MAX_ADAPTERS)]
    """Its place, up to `Ready.adapter_places`: the same one on all workers of a model."""
    paths: Annotated[tuple[FilePath, ...], Meta(min_length=1, max_length=MAX_ADAPTER_PATHS)]
    """Directories that may have its files: the first one whose files have the digest is read."""
    digest: Name
    """That of its `protocol.adapter_files`, see `actors.process.file_digest`."""


class UnloadAdapter(Struct, frozen=True, array_like=True, tag="unload", gc=False):
    """Forget an adapter that was loaded by `LoadAdapter`, and that no sequence has any more. One that is not there is
    forgotten already. The worker answers with one `AdapterChanged`."""

    query: StreamId
    name: Name


Command = Welcome | Submit | Tokenize | Cancel | Drain | Stop | ReadRows | WriteRows | LoadAdapter | UnloadAdapter
