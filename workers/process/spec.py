"""Specification of a worker process: one JSON object on its command line."""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from protocol.bounds import MAX_ADAPTERS, MAX_COUNT, MAX_SLOTS, MAX_TOKENS, MIN_KEEP, Label, Name
from protocol.events import Phases
from protocol.scheduling import MAX_HEADROOM, SchedulerPolicy
from workers.checkpoints.gguf.find import MMPROJ_AUTO
from workers.engine.images.image_row_cache import DEFAULT_CACHE_BYTES
from workers.faults.plan import Fault, of_incarnation
from workers.host.cpu_plan import AUTO as BIND_AUTO
from workers.load_options import MAX_LORA_RANK, SparseSettings
from workers.output_formats.formats.choice import AUTO
from workers.precision import CpuTarget, Dtype, KvDtype, Quantize, WindowCache

Backend = Name
"""`auto`, `iree`, `mlx`, `scripted`, or the name of a plug-in, see `workers.backend_plugin`."""
GenerationConfig = Literal["auto", "none"]
Speculate = Literal["auto", "off"]


class ScriptedSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Behaviour of the scripted runner, whose tokens follow from the prompt."""

    tokens_per_second: Annotated[float, Meta(ge=0.0)] = 0.0
    """Decode steps per second; 0 is unlimited."""
    load_seconds: Annotated[float, Meta(ge=0.0)] = 0.0
    prefill_tokens_per_second: Annotated[float, Meta(ge=0.0)] = 0.0
    """Prompt tokens computed per second; 0 is unlimited."""
    drafts: bool = False
    """A step has room for drafted tokens. Without, the pace of answers is that of the steps."""
    recurrent: bool = False
    """The model has a recurrent state beside its rows."""
    images: bool = False
    """The model has a vision tower: prompts may have images, of which it knows only the bytes."""
    image_part_seconds: Annotated[float, Meta(ge=0.0)] = 0.0
    """Time of each part of the computation of an image."""
    pooling: Literal["vectors", "encoder", "pairs"] = "vectors"
    """Vectors and scores that the model makes of texts, and whether it generates: see `workers.scripted.pooling`."""


class WorkerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a worker needs before it can send `Hello`."""

    name: Name
    """Name of the worker, unique in a gateway."""
    model_name: Name
    """Name of the model for clients."""
    model_path: str
    """Directory in Hugging Face layout."""
    backend: Backend = "auto"
    device: str = ""
    """Device URI of the backend; empty means the backend's default."""
    dtype: Dtype = "auto"
    quantize: Quantize = "none"
    kv_dtype: KvDtype = "auto"
    window_cache: WindowCache = "full"
    cpu: CpuTarget = "host"
    """Instructions that IREE's graphs use on a CPU."""
    max_batch_size: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] = 8
    context: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    """Tokens of one slot; 0 means the model's own where memory allows, see `workers.process.startup.context_choice`."""
    chosen_context: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    """The choice for a `context` of 0, made when the server started; 0 lets the worker choose."""
    max_queue: Annotated[int, Meta(ge=0, le=1 << 20)] = 256
    scheduler_policy: SchedulerPolicy = "fifo"
    """Order in which sequences get slots and are prefilled."""
    scheduler_headroom: Annotated[float, Meta(ge=0, le=MAX_HEADROOM)] = 0.0
    """Share of the KV cache that a further sequence may not reserve while others run."""
    role: Phases = "both"
    """See `Hello.phases`."""
    step_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    """Token budget of one engine step: decode rows first, then prompt chunks. 0 derives it from measured costs."""
    speculate: Speculate = "auto"
    """`auto` drafts tokens where that makes answers faster, and changes nothing else."""
    draft_model: str = ""
    """Directory of a smaller model with the same tokenizer, which drafts tokens; empty for none."""
    draft_name: Label = ""
    """The name under which it is shown."""
    adapter: str = ""
    """Directory of a LoRA adapter of mlx-lm, which is applied to the model; empty for none."""
    lora_modules: Annotated[dict[Name, str], Meta(max_length=MAX_ADAPTERS)] = {}
    """Names and directories of LoRA adapters that requests choose."""
    max_lora_rank: Annotated[int, Meta(ge=1, le=MAX_LORA_RANK)] = 64
    """The highest rank that one of them may have."""
    max_loras: Annotated[int, Meta(ge=1, le=MAX_ADAPTERS)] = 8
    """The most of them."""
    runtime_lora: bool = False
    """More of them may be loaded at run time, up to `max_loras` in all."""
    sparse_prefill: bool = False
    """Requests may ask that only a part of their prompt is computed, which the draft model chooses."""
    sparse_prefill_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    """Tokens from which on that is done unless a request forbids it; 0 leaves it to requests."""
    sparse_prefill_keep: Annotated[float, Meta(ge=MIN_KEEP, le=1.0)] = 0.3
    """The part that is kept, where a request does not say."""
    attention: bool = False
    """The model is loaded with what reads its attention. Set for a draft model by its worker."""
    kv_bytes: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0
    """Bytes of KV cache that all sequences share; 0 means the whole context of every slot, or what memory allows."""
    kv_most: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0
    """For `kv_bytes` 0, the most bytes: the model's part of the budget of a server with several; 0 is no such bound."""
    prefix_cache: bool = True
    """Retain the KV of ended sequences, for requests that share a prefix with them."""
    prefix_bytes: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0
    """Maximum bytes retained so; 0 retains the last sequence of every slot."""
    prefix_cache_bytes: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0
    """Maximum bytes of the prefix tier, which all workers of this user on the machine share; 0 is no tier."""
    prefix_cache_dir: str = ""
    """Directory of the prefix tier; empty means one in memory, which ends with its last user."""
    state_cache_bytes: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 1_000_000_000
    """Maximum bytes of recurrent states that are kept for prefixes, if the model has any; 0 keeps none."""
    image_cache_bytes: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = DEFAULT_CACHE_BYTES
    """Maximum bytes of the rows of images that are kept for prompts with the same image, but for those that prompts
    still need; 0 keeps no others."""
    embeddings: bool = False
    """Prompts may have rows of embeddings in place of tokens."""
    vision: bool = True
    """A model that has a vision tower is loaded with it, so that prompts may have images."""
    mmproj: Annotated[str, Meta(min_length=1)] = MMPROJ_AUTO
    """The GGUF file with that tower, for a model in GGUF files; "auto" is the one beside it, "none" is none."""
    parse_special: bool = False
    """Take control tokens in the text of chat messages for control tokens, not for text."""
    generation_config: GenerationConfig = "auto"
    """`auto` takes sampling parameters that a client leaves open from the checkpoint's generation_config.json, `none`
    does not."""
    tool_parser: str = AUTO
    """Format of the model's tool calls, of `workers.output_formats.formats.catalog`; `none` leaves them in the text."""
    reasoning_parser: str = AUTO
    """Format of the model's reasoning, likewise."""
    cache_dir: str = ""
    """Folder of IREE's compiled graphs and packed weights; empty means the user's cache folder."""
    threads: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Compute threads; 0 means one per core of this worker's share, or one for a model too small to gain from more."""
    threads_bind: str = BIND_AUTO
    """CPUs of the compute threads, as in `workers.host.cpu_plan.CpuPlan.of`."""
    mmap: bool = True
    """Map IREE's packed weights from the cache folder; otherwise each worker has a copy."""
    workers: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 1
    """Number of workers that share the machine's memory and cores, including this one."""
    place: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = 0
    """Place of this worker among them, from 0; None for one without cores of its own, as in standby."""
    predecessor: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0
    """Process id of a server whose place is taken over: the memory of its workers counts as free. 0: none."""
    sources: dict[str, str] = {}
    """The flag, variable or line of a file that set a setting, for errors about it; without those at their defaults."""
    log_level: str = "info"
    scripted: ScriptedSpec = ScriptedSpec()
    faults: tuple[Fault, ...] = ()
    """Planned faults, for tests; empty in production."""

    @property
    def runtime_loras(self) -> int:
        """Adapters that may be loaded at run time, beside those that are loaded with the model."""
        return max(0, self.max_loras - len(self.lora_modules)) if self.runtime_lora else 0

    @property
    def sparse(self) -> SparseSettings | None:
        """Settings of sparse prefill; None without it."""
        if not self.sparse_prefill:
            return None
        return SparseSettings(self.sparse_prefill_tokens, self.sparse_prefill_keep)

    def of_incarnation(self, number: int) -> "WorkerSpec":
        """Return the specification for one incarnation, with the faults planned for it."""
        return replace(self, faults=of_incarnation(self.faults, number))
