"""The options of a load, in the one form that every backend takes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workers.precision import CpuTarget, Dtype, KvDtype, Quantize, WindowCache

MAX_LORA_RANK = 512
"""Above the rank of any adapter of use: it is small beside the widths of a model."""
Progress = Callable[[str, int, int], None]
"""Receives phase, done and total while a model loads."""


@dataclass(frozen=True, slots=True)
class SparseSettings:
    """Settings of sparse prefill."""

    tokens: int = 0
    """Prompts of so many tokens and more are, unless the request forbids it; 0 only those of requests that ask."""
    keep: float = 0.3
    """The part of them that is kept, where the request does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Settings with which a checkpoint becomes a runner, or compiled graphs.

    A backend ignores what it has no use for: MLX compiles nothing to disk and sizes its own threads.
    """

    device: str = ""
    """A device URI of the backend, such as "local-task", "cuda" or "vulkan://0" (IREE), "cpu" or "gpu" (MLX). Empty is
    the backend's default."""
    dtype: Dtype = "auto"
    quantize: Quantize = "none"
    kv_dtype: KvDtype = "auto"
    window_cache: WindowCache = "full"
    """The rows of a slot that layers with an attention window keep: all, or a ring of the last ones."""
    cpu: CpuTarget = "host"
    """Instructions that the graphs of a CPU use."""
    slots: int
    """Sequences that the KV cache holds at once."""
    context: int = 0
    """Tokens of one slot; 0 is what the model states."""
    cache_dir: Path
    """Folder of compiled graphs and packed weights."""
    threads: int = 0
    """Compute threads; 0 lets the backend choose."""
    threads_bind: str = "auto"
    """CPUs of the compute threads, as in `workers.host.cpu_plan.CpuPlan.of`."""
    mmap: bool = True
    """Map packed weights, whose pages processes share. False copies them into memory of this process."""
    kv_bytes: int = 0
    """Bytes of KV cache that all slots share; 0 is what memory allows."""
    leaving_bytes: int = 0
    """Bytes that will be free when the server has ended whose place is taken over: the KV cache may count on them."""
    reserved_bytes: int = 0
    """Bytes of memory that the prefix tier may still take: a KV cache whose size is left open leaves them free."""
    adapter: Path | None = None
    """The directory of a LoRA adapter."""
    lora_modules: tuple[tuple[str, Path], ...] = ()
    """The names and directories of LoRA adapters that requests choose."""
    max_lora_rank: int = MAX_LORA_RANK
    """The highest rank that one of them may have."""
    runtime_loras: int = 0
    """Adapters that may be loaded beside them at run time, for which room is left."""
    embeddings: bool = False
    """Prompts may have rows of embeddings in place of tokens."""
    vision: bool = True
    """Load the vision tower of a model that has one, for images in prompts."""
    mmproj: str = "auto"
    """The GGUF file with that tower, for a model in GGUF files; "auto" is the one beside it, "none" is none."""
    attention: bool = False
    """The queries and keys of the model can be read: what scores the prompts of another one needs them."""
    workers: int = 1
    """Workers that share the machine's memory and cores, this one included."""
    place: int | None = 0
    """This worker's place among them, from 0; None for one that has none, as in standby."""
