"""The settings of a worker's engine."""

from typing import Literal

from pydantic import BaseModel

from cli.config.panels.field import ENGINE, GATEWAY, setting
from protocol.bounds import MAX_COUNT, MAX_QUEUE, MAX_SLOTS, MAX_TOKENS, MIN_KEEP
from protocol.scheduling import MAX_HEADROOM, SchedulerPolicy
from workers.checkpoints.gguf.find import MMPROJ_AUTO


class EngineSettings(BaseModel):
    """Batches, caches, speculation, prompts and threads of a worker."""

    max_batch_size: int = setting(
        8, ENGINE, "Maximum number of sequences that run at once in one worker.", ge=1, le=MAX_SLOTS
    )
    max_queue: int = setting(256, ENGINE, "Maximum number of sequences that wait in one worker.", ge=0, le=MAX_QUEUE)
    scheduler_policy: SchedulerPolicy = setting(
        GATEWAY.scheduler_policy,
        ENGINE,
        "Order of the waiting requests of one API key. fifo: first in, first out. shortest-uncached-first: first those "
        "with the fewest prompt tokens to compute. priority: first those with the lowest `priority`. A request that "
        "waits for long is not overtaken.",
    )
    scheduler_headroom: float = setting(
        0.0,
        ENGINE,
        "Share of a worker's KV cache that a further sequence leaves free while others run, for the prefix cache.",
        ge=0,
        le=MAX_HEADROOM,
    )
    step_tokens: int = setting(
        0,
        ENGINE,
        "Token budget of one engine step; 0 sets it so that running streams keep their pace.",
        ge=0,
        le=MAX_TOKENS,
    )
    kv_bytes: int = setting(
        0,
        ENGINE,
        "Bytes of KV cache that a worker's sequences share; 0 uses the worker's share of the free memory, at most "
        "max_batch_size x context.",
        ge=0,
        le=MAX_COUNT,
    )
    speculate: Literal["auto", "off"] = setting(
        "auto",
        ENGINE,
        "Speculative decoding. auto: on CPUs, draft tokens that repeat the prompt or the answer, or that a grammar "
        "forces, where verifying them is worth it. Answers are the same.",
    )
    draft_model: str = setting(
        "",
        ENGINE,
        "Directory or Hugging Face id of a smaller model with the same tokenizer, which drafts tokens with --speculate "
        "auto on a CPU; empty for none.",
        "MODEL",
    )
    adapter: str = setting(
        "",
        ENGINE,
        "Directory of a LoRA adapter of mlx-lm, which is applied to the model on MLX; empty for none.",
        "DIR",
    )
    sparse_prefill: bool = setting(
        False,
        ENGINE,
        "Sparse prefill: let requests ask that only the part of a long prompt is computed that the draft model attends "
        "to most. Their answers are others than those of the whole prompt.",
    )
    sparse_prefill_tokens: int = setting(
        0,
        ENGINE,
        "With --sparse-prefill, prompts of so many tokens and more are computed so unless their request forbids it; 0 "
        "leaves it to requests.",
        ge=0,
        le=MAX_TOKENS,
    )
    sparse_prefill_keep: float = setting(
        0.3,
        ENGINE,
        "With --sparse-prefill, the part of a prompt that is computed, where a request does not say.",
        ge=MIN_KEEP,
        le=1,
    )
    prefix_cache: bool = setting(True, ENGINE, "Keep the KV of ended sequences for requests that share a prefix.")
    prefix_bytes: int = setting(
        0,
        ENGINE,
        "Maximum bytes of KV that the prefix cache keeps; 0 keeps the last sequence of every slot.",
        ge=0,
        le=MAX_COUNT,
    )
    prefix_cache_bytes: int = setting(
        1_000_000_000,
        ENGINE,
        "Maximum bytes of prefixes that are kept apart from the slots, for all workers of this machine; unless it is "
        "set, fewer or none where memory is short. 0 keeps none.",
        ge=0,
        le=MAX_COUNT,
    )
    prefix_cache_dir: str = setting(
        "",
        ENGINE,
        "Directory of the prefixes of --prefix-cache-bytes; they outlive the server there. Empty keeps them in memory.",
        "DIR",
    )
    state_cache_bytes: int = setting(
        1_000_000_000,
        ENGINE,
        "Maximum bytes of recurrent states, and of windows beside --window-cache ring, that a worker keeps for "
        "prefixes; unless it is set, fewer where memory is short. 0 keeps none.",
        ge=0,
        le=MAX_COUNT,
    )
    image_cache_bytes: int = setting(
        256_000_000,
        ENGINE,
        "Maximum bytes of what the vision tower has made of images that a worker keeps, for requests with the same "
        "image. 0 keeps nothing beyond a request's prompt.",
        ge=0,
        le=MAX_COUNT,
    )
    enable_prompt_embeds: bool = setting(
        False,
        ENGINE,
        "Take rows of embeddings in place of a prompt: the field prompt_embeds of completions.",
    )
    vision: bool = setting(
        True, ENGINE, "Load the vision tower of a model that has one, so that prompts may have images."
    )
    mmproj: str = setting(
        MMPROJ_AUTO,
        ENGINE,
        "Projector of images of a GGUF model: a GGUF file, or Hugging Face id of one. auto: the mmproj file beside the "
        "model. none: no images.",
        "FILE",
        min_length=1,
    )
    parse_special: bool = setting(
        False,
        ENGINE,
        "Parse control tokens in the text of chat messages. Otherwise they are ordinary text there.",
    )
    generation_config: Literal["auto", "none"] = setting(
        "auto",
        ENGINE,
        "auto: temperature, top_k, top_p, min_p and repetition_penalty that a request leaves open are those of the "
        "model's generation_config.json. none: the API's defaults.",
    )
    tool_parser: str = setting(
        "auto",
        ENGINE,
        "Notation of the model's tool calls; `auto` recognizes it by the chat template, and `none` leaves calls in the "
        "text. docs/tools.md lists the names.",
        "NAME",
        min_length=1,
    )
    reasoning_parser: str = setting(
        "auto",
        ENGINE,
        "Notation of the model's reasoning, with `auto` and `none` likewise.",
        "NAME",
        min_length=1,
    )
    threads: int = setting(
        0,
        ENGINE,
        "Compute threads of one IREE worker; 0 divides the cores among the workers, or uses one thread for a small "
        "model. MLX chooses its own number.",
        ge=0,
        le=4096,
    )
    threads_bind: str = setting(
        "auto",
        ENGINE,
        "CPUs of IREE's compute threads on Linux. auto: near to each other and to their memory, on machines with "
        "several NUMA nodes or last-level caches. nobind: any. Or lists such as 0-15, one for each worker, with a "
        "vertical bar between them: a thread for each core, pinned to it.",
        "auto|nobind|CPUS",
        min_length=1,
    )
    mmap: bool = setting(
        True,
        ENGINE,
        "Map packed weights from the cache directory, so that workers share them. Otherwise each IREE worker on a CPU "
        "copies them into huge pages of its own.",
    )
    cache_dir: str = setting(
        "",
        ENGINE,
        "Directory of IREE's compiled graphs and packed weights; empty uses the user's cache directory.",
        "DIR",
    )
