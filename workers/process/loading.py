"""Loads what a worker serves with: tokenizer, runner and engine, warmed up with one step."""

import contextlib
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from protocol.request import Sampling
from workers.checkpoints.documents import has_tokenizer
from workers.checkpoints.generation_config import SamplingDefaults, read_sampling_defaults
from workers.engine.adapters.adapter_slots import AdapterSlots, adapter_slots_of
from workers.engine.engine import BatchEngine
from workers.engine.finite_check import PROBE_TOKEN, NonFiniteModel, has_finite_logits
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.runner import DecodeRow, DraftHead, Runner, RunnerCapabilities
from workers.engine.scheduling.token_budget import DEFAULT_STEP_TOKENS
from workers.engine.speculation.batched.batch_drafting import BatchDrafting
from workers.engine.speculation.batched.draft_model import DraftModel
from workers.engine.speculation.mtp.head_upkeep import HeadUpkeep
from workers.engine.speculation.mtp.mtp_drafter import RELATIVE_COST, MtpDrafter
from workers.engine.speculation.speculator import Speculator
from workers.engine.tier.prefix_tier import PrefixTier
from workers.errors import LoadRefused, name_source
from workers.faults.faulty_runner import with_faults
from workers.grammar.compiler import GrammarCompiler
from workers.grammar.vocabulary import tokenizer_vocabulary
from workers.host.memory import rows_of, spare_bytes
from workers.load_options import Progress, SparseSettings
from workers.output_formats.formats.choice import NO_FORMATS, ChosenFormats, choose_formats
from workers.pooling.checkpoint_default import default_pooling
from workers.pooling.classifier import Classifier
from workers.pooling.last_token import last_token_classifier
from workers.pooling.served_pooling import NO_POOLING, ServedPooling
from workers.prefix_store.directory import default_directory
from workers.prefix_store.shared_directory import DirectoryUnusable
from workers.prefix_store.store import PrefixStore
from workers.process.backends import load_runner
from workers.process.draft_loading import drafter_of, drafting_by, load_draft, plan_draft, sparse_prefill_by
from workers.process.prompts.images.image_source import ImageSource
from workers.process.spec import WorkerSpec
from workers.process.startup.alone import log_alone
from workers.process.startup.state_cache import state_cache_bytes
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.images import IMAGE_TOKEN, PLACEHOLDER, ScriptedImageProcessor, ScriptedVision
from workers.scripted.pooling import scripted_pooling
from workers.text.byte_tokenizer import ByteTokenizer
from workers.text.tokenizer import Tokenizer
from workers.vision.encoder import VisionEncoder


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model, ready to serve. `tokenizer` is None for a model without one."""

    engine: BatchEngine
    tokenizer: Tokenizer | None
    context: int
    step_s: float = 0.0
    """Seconds that a step with a full budget of prompt tokens may take, see `warm_up`; 0 if not measured."""
    eos_ids: frozenset[int] = frozenset()
    """Tokens that end an answer of a model without a tokenizer."""
    sampling_defaults: SamplingDefaults = field(default_factory=dict)
    """Sampling parameters of requests that leave them open."""
    grammars: GrammarCompiler | None = None
    """Compiles the grammars of requests; None for a model without a tokenizer. The one who serves closes it."""
    formats: ChosenFormats = NO_FORMATS
    """Notations of the model's tool calls and reasoning."""
    memory_bytes: int = 0
    """Bytes of the weights, of the KV cache when it is full and of recurrent states, with those of a draft model; 0 if
    unknown."""
    mtp: bool = False
    """The model's head for multi-token prediction drafts tokens."""
    sparse: SparseSettings | None = None
    """Settings of sparse prefill; None without it."""
    images: ImageSource | None = None
    """Prepares images; None for a model without a vision tower."""
    pooling: ServedPooling = NO_POOLING
    """Vectors and scores that the model makes of texts."""
    adapter_slots: AdapterSlots | None = None
    """Places for adapters that are loaded at run time; None without any."""


def load(spec: WorkerSpec, progress: Progress) -> Loaded:
    """Load tokenizer and runner, and run one step. Called on the thread that runs the engine afterwards.

    Raises what the backend raises, and `NonFiniteModel`; for a setting, `LoadRefused` that names what set it.
    """
    try:
        return _load(spec, progress)
    except LoadRefused as error:
        if (named := name_source(error, spec.sources)) is error:
            raise
        raise named from error


def _load(spec: WorkerSpec, progress: Progress) -> Loaded:
    tokenizer = _load_tokenizer(spec, progress)
    eos_ids = _config_eos_ids(spec) if tokenizer is None else frozenset()
    sampling_defaults = _sampling_defaults(spec)
    formats = _formats(spec, tokenizer)
    progress("start backend", 0, 1)  # slow imports, before the backend can report progress itself
    planned = plan_draft(spec)
    runner = load_runner(spec, progress)
    log_alone(spec, runner.capabilities.slots)
    if runner.vision is not None or spec.backend != "scripted":
        from workers.process.startup.projector import log_projector  # slow imports, which a script does not need

        log_projector(spec)
    with contextlib.ExitStack() as undo:
        undo.callback(runner.close)
        if planned is not None and (reason := _unverified(runner.capabilities)):
            raise LoadRefused(f"draft_model: {reason}, and its drafts could not be verified: leave it out")
        draft = None if planned is None else load_draft(planned, progress)
        if draft is not None:
            undo.callback(draft.close)
        step_s = 0.0
        if spec.backend != "scripted":  # whose steps take as long as the specification says
            progress("warm-up", 0, 1)
            step_s = warm_up(runner, spec.step_tokens or DEFAULT_STEP_TOKENS)
            if draft is not None:
                check_finite(draft, "draft_model")
            progress("warm-up", 1, 1)
        pooling = _pooling(spec, runner.capabilities, tokenizer)
        served = with_faults(runner, spec.faults)  # call 1 of the plan is the first call of the first request
        drafter = None if draft is None else drafter_of(draft)
        speculator = make_speculator(spec, runner.capabilities, drafter, runner.draft_head, runner.fits)
        state_bytes = state_cache_bytes(spec, runner.capabilities, spare_bytes())
        engine = BatchEngine(
            served,
            max_queue=spec.max_queue,
            step_tokens=spec.step_tokens or None,
            kv_tokens=kv_tokens(spec, runner.capabilities, None if draft is None else draft.capabilities),
            prefixes=prefix_policy(spec, runner.capabilities),
            policy=spec.scheduler_policy,
            tier=prefix_tier(spec, served, state_bytes),
            speculator=speculator,
            state_cache_bytes=state_bytes,
            sparse=None if drafter is None else sparse_prefill_by(spec, drafter),
            image_cache_bytes=spec.image_cache_bytes,
        )
        images = None if runner.vision is None else image_source(spec, runner.vision)
        undo.pop_all()  # the engine owns the runners now
    vocab_size = runner.capabilities.vocab_size
    grammars = None
    if tokenizer is not None:
        grammars = GrammarCompiler(functools.partial(tokenizer_vocabulary, tokenizer, vocab_size))
    context, mtp = runner.capabilities.context, speculator is not None and runner.draft_head is not None
    held = memory_bytes(runner.capabilities, engine.kv_capacity)
    if held and engine.snapshots is not None:
        held += engine.snapshots.max_bytes
    if draft is not None:
        held += memory_bytes(draft.capabilities, engine.kv_capacity)
    return Loaded(
        engine,
        tokenizer,
        context,
        step_s,
        eos_ids,
        sampling_defaults,
        grammars,
        formats,
        held,
        mtp,
        spec.sparse,
        images,
        pooling,
        adapter_slots_of(runner),
    )


def _pooling(spec: WorkerSpec, capabilities: RunnerCapabilities, tokenizer: Tokenizer | None) -> ServedPooling:
    """Return what the model makes of hidden states."""
    width, generates = capabilities.hidden_width, not capabilities.bidirectional
    if spec.backend == "scripted":
        return scripted_pooling(spec.scripted.pooling, width)
    if not width:
        return NO_POOLING
    path = Path(spec.model_path)
    if generates and (last := last_token_classifier(path, tokenizer)) is not None:
        return default_pooling(
            path, width, generates=False, classifier=last, labels=last.labels, template=last.template
        )
    classifier = None if generates else Classifier.of(path)
    labels = 0 if classifier is None else classifier.labels
    return default_pooling(path, width, generates=generates, classifier=classifier, labels=labels)


def kv_tokens(
    spec: WorkerSpec, capabilities: RunnerCapabilities, draft: RunnerCapabilities | None = None
) -> int | None:
    """Return the cache rows that `kv_bytes` allow, or the runner's own limit; None means the whole context of every
    slot. A draft model has as many rows beside them.

    Raises `MemoryRefused` if they are fewer than one context, as a load does before it starts.
    """
    if not spec.kv_bytes:
        return capabilities.kv_rows or None
    row_bytes = capabilities.row_bytes + (0 if draft is None else draft.row_bytes)
    return rows_of(spec.kv_bytes, row_bytes, capabilities.context)


def memory_bytes(capabilities: RunnerCapabilities, kv_tokens: int) -> int:
    """Return the bytes of the weights, of a KV cache with so many tokens and of the recurrent states of all slots, each
    with those that rows are taken back to, or of the rings of windows; 0 if those of the weights are unknown."""
    if not capabilities.weight_bytes:
        return 0
    states = capabilities.slots * (1 + capabilities.rollback_rows) * capabilities.state_bytes
    if capabilities.window_rows:  # a state of theirs is a copy of rows
        states = capabilities.slots * capabilities.window_bytes
    return capabilities.weight_bytes + kv_tokens * capabilities.row_bytes + states


def prefix_policy(spec: WorkerSpec, capabilities: RunnerCapabilities) -> PrefixPolicy:
    """Return what to retain of ended sequences."""
    most = spec.prefix_bytes // max(capabilities.row_bytes, 1) if spec.prefix_bytes else None
    return PrefixPolicy(spec.prefix_cache, most, headroom=spec.scheduler_headroom)


def prefix_tier(spec: WorkerSpec, runner: Runner, state_bytes: int = 0) -> PrefixTier | None:
    """Open the prefix tier, if there is one. A directory that cannot be used costs no more than the tier. `state_bytes`
    are those for recurrent states in memory, from which the tier saves them.

    Raises `LoadRefused` for a size that was set and is too small for one block.
    """
    if not (spec.prefix_cache and spec.prefix_cache_bytes):
        return None
    log = structlog.get_logger()
    asked = "prefix_cache_bytes" in spec.sources
    if not PrefixTier.serves(runner.capabilities):
        reason = f"cached rows depend on their chunks on {runner.capabilities.device}"
        if not runner.capabilities.row_bytes:
            reason = "the model has no cached rows"
        (log.warning if asked else log.info)("prefix_tier_off", reason=reason)
        return None
    if runner.capabilities.state_bytes and not state_bytes:
        kind = "layers that keep their window alone" if runner.capabilities.window_rows else "a recurrent state"
        reason = f"the model has {kind}, and the cache of states (state_cache_bytes) is off"
        (log.warning if asked else log.info)("prefix_tier_off", reason=reason)
        return None
    if (least := PrefixTier.least_bytes(runner.capabilities)) > spec.prefix_cache_bytes:
        reason = f"prefix_cache_bytes: a block of {spec.model_name} takes {least}, more than {spec.prefix_cache_bytes}"
        if asked:
            raise LoadRefused(f"{reason}: set {least} at least, or 0 for no prefix tier")
        log.info("prefix_tier_off", reason=reason)
        return None
    path = Path(spec.prefix_cache_dir).expanduser() if spec.prefix_cache_dir else default_directory()
    try:
        store = PrefixStore(path, spec.prefix_cache_bytes, temporary=not spec.prefix_cache_dir)
    except DirectoryUnusable as error:
        (log.warning if asked else log.info)("prefix_tier_off", reason=str(error))
        return None
    return PrefixTier(store, runner)


def make_speculator(
    spec: WorkerSpec,
    capabilities: RunnerCapabilities,
    draft: DraftModel | None = None,
    head: DraftHead | None = None,
    fits: Callable[[int], bool] | None = None,
) -> Speculator | None:
    """Return what drafts tokens, by the draft model or the model's own head as well, where drafts can be verified and
    the setting does not forbid it. `fits` as in `Speculator`."""
    if spec.speculate == "off":
        return None
    if reason := _unverified(capabilities):
        structlog.get_logger().info("speculation_off", reason=reason)
        return None
    batched = None if head is None else BatchDrafting(MtpDrafter(head), RELATIVE_COST, upkeep=HeadUpkeep(head))
    batched = batched if draft is None else drafting_by(draft, capabilities)
    return Speculator(capabilities, batched=batched, fits=fits)


def _unverified(capabilities: RunnerCapabilities) -> str:
    """Return why drafts cannot be verified; empty where they can."""
    if not capabilities.exact_rows:
        return f"on {capabilities.device} a row of several in a step may have other bits than one alone"
    if capabilities.state_bytes and capabilities.rollback_rows < 2:
        return "the model has a recurrent state, from which rejected drafts cannot be taken back"
    return "" if capabilities.decode_rows > 1 else "a step has one row for each sequence"


def warm_up(runner: Runner, step_tokens: int, clock: Callable[[], float] = time.monotonic) -> float:
    """Run a prompt of the smallest chunk and one decode row, without the engine and its counters.

    Returns the seconds that a step of `step_tokens` may take: all of its prompt tokens in chunks of that size, one
    after the other, and the decode rows. Larger chunks cost less per token.

    Raises `NonFiniteModel` if either has non-finite logits.
    """
    length = min(runner.capabilities.prefill_chunks[0], runner.capabilities.context - 1)
    began = clock()
    sane = has_finite_logits(runner, 0, length)
    prefilled = clock()
    if sane and not runner.capabilities.bidirectional:
        sane = runner.decode([DecodeRow(0, PROBE_TOKEN, length, length, SampleSpec(Sampling(), length + 1))]) != [None]
    decode_s = clock() - prefilled
    if not sane:
        raise NonFiniteModel(runner.capabilities.dtype)
    runner.reset(0)
    chunks = math.ceil(step_tokens / length)
    return chunks * (prefilled - began) + decode_s


def check_finite(runner: Runner, setting: str) -> None:
    """Compute a token with a runner. Raises `LoadRefused` that names the setting if its logits are not finite."""
    try:
        warm_up(runner, 1)
    except NonFiniteModel as error:
        raise LoadRefused(f"{setting}: {error}") from error


def image_source(spec: WorkerSpec, vision: VisionEncoder) -> ImageSource:
    """Return what prepares images for a vision tower. Raises `LoadRefused` if nothing does, and `CheckpointError` for
    settings of preprocessing that are not supported."""
    if isinstance(vision, ScriptedVision):
        return ScriptedImageProcessor()
    from workers.vision.processor import ImageProcessor

    if (processor := ImageProcessor.of(Path(spec.model_path), spec.mmproj, vision.max_patches)) is None:
        raise LoadRefused(f"vision: {spec.model_name} has no preprocessing of images: serve it with --no-vision")
    return processor


def _load_tokenizer(spec: WorkerSpec, progress: Progress) -> Tokenizer | None:
    if spec.backend == "scripted":
        return ByteTokenizer(PLACEHOLDER, IMAGE_TOKEN) if spec.scripted.images else ByteTokenizer()
    if not has_tokenizer(Path(spec.model_path)):
        return None
    from workers.text.checkpoint_tokenizer import CheckpointTokenizer

    progress("tokenizer", 0, 1)
    tokenizer = CheckpointTokenizer.from_dir(Path(spec.model_path), parse_special=spec.parse_special)
    progress("tokenizer", 1, 1)
    return tokenizer


def _formats(spec: WorkerSpec, tokenizer: Tokenizer | None) -> ChosenFormats:
    if tokenizer is None:
        return NO_FORMATS
    return choose_formats(
        spec.reasoning_parser,
        spec.tool_parser,
        chat_template=tokenizer.template_text,
        response_template=tokenizer.response_template,
        added_tokens=tokenizer.added_tokens,
    )


def _config_eos_ids(spec: WorkerSpec) -> frozenset[int]:
    from workers.checkpoints.eos_ids import read_eos_ids

    return read_eos_ids(Path(spec.model_path))


def _sampling_defaults(spec: WorkerSpec) -> SamplingDefaults:
    if spec.backend == "scripted" or spec.generation_config == "none":
        return {}
    return read_sampling_defaults(Path(spec.model_path))
