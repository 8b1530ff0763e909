"""What a worker process is told on its command line: one JSON object, decoded once."""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from protocol.bounds import MAX_COUNT, MAX_SLOTS, MAX_TOKENS, Name
from workers.faults.plan import Fault, of_incarnation

Backend = Literal["auto", "iree", "mlx", "scripted"]
Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Quantize = Literal["none", "int8", "int4"]
"""What is made of matrices that the checkpoint does not have in few bits already."""


class ScriptedSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How the scripted runner behaves: its tokens follow from the prompt, at a set rate."""

    tokens_per_second: Annotated[float, Meta(ge=0.0)] = 0.0
    """Decode steps a second; 0 is as fast as it can."""
    load_seconds: Annotated[float, Meta(ge=0.0)] = 0.0


class WorkerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a worker needs to know before it can say `Hello`."""

    name: Name
    """The worker's own name, unique in a gateway."""
    model_name: Name
    """What clients call the model."""
    model_path: str
    """A directory in Hugging Face layout."""
    backend: Backend = "auto"
    device: str = ""
    """A device URI of the backend; empty is the backend's default."""
    dtype: Dtype = "auto"
    quantize: Quantize = "none"
    max_batch_size: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] = 8
    context: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    """Tokens of one slot; 0 is what the model states, bounded by `workers.checkpoints.checkpoint.DEFAULT_CONTEXT`."""
    max_queue: Annotated[int, Meta(ge=0, le=1 << 20)] = 256
    step_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    """Token budget of one engine step: decode rows first, then prompt chunks. 0 is what measured costs allow."""
    kv_bytes: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0
    """Bytes of KV cache that all sequences share; 0 is every slot's whole context, or what memory allows."""
    prefix_cache: bool = True
    """Keep what ended sequences left in the KV cache, for those that begin alike."""
    prefix_bytes: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0
    """Bytes kept so at most; 0 keeps the last sequence of every slot."""
    cache_dir: str = ""
    """Where IREE's compiled graphs and packed weights are kept; empty is the user's cache folder."""
    threads: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Compute threads; 0 is one for each core of this worker's share, or one where a model is too small for more."""
    workers: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 1
    """Workers that share the machine's memory and cores, this one included."""
    log_level: str = "info"
    scripted: ScriptedSpec = ScriptedSpec()
    faults: tuple[Fault, ...] = ()
    """What goes wrong on purpose, and when; nothing where people are served."""

    def of_incarnation(self, number: int) -> "WorkerSpec":
        """What one life of the worker is told: the faults of its own life alone."""
        return replace(self, faults=of_incarnation(self.faults, number))
