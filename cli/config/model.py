"""The model that the settings name, and the worker spec that runs it."""

from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from cli.config.errors import CommandFailed
from cli.config.panels.lora import adapter_directories
from cli.config.settings import Settings
from models import builtin_path
from protocol.bounds import MAX_NAME
from protocol.hub_id import plain_name
from workers.checkpoints.gguf.find import MMPROJ_AUTO, MMPROJ_NONE, SUFFIX
from workers.checkpoints.gguf.gguf_file import SHARD
from workers.errors import LoadRefused, name_source
from workers.hub.resolve import resolve_model, resolve_projector
from workers.process.backends import cache_dir
from workers.process.spec import ScriptedSpec, WorkerSpec
from workers.process.startup.describe import describe

BUILTIN_NAME = "baton-tiny"
SCRIPTED_NAME = "scripted"
SCRIPTED_STEPS_PER_S = 10_000.0
"""Decode steps a second of a scripted worker: half of the frames that a gateway accepts from a worker."""

_SPEC_NAMES = {"enable_prompt_embeds": "embeddings"}
"""Settings that a spec has under other names."""


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model directory or a GGUF file on this machine, and the name that clients use for it."""

    name: str
    path: Path

    @classmethod
    def choose(cls, settings: Settings) -> "ChosenModel":
        """Return the model that the settings name, downloaded from the hub if necessary. Raises `CommandFailed`."""
        if settings.backend == "scripted" and not settings.model:
            return cls(settings.name or SCRIPTED_NAME, Path())
        if is_builtin(settings):
            return cls(settings.name or BUILTIN_NAME, builtin_path())
        try:
            path = resolve_model(settings.model, projector=takes_projector(settings))
        except (LoadRefused, OSError) as error:
            raise CommandFailed(str(error)) from error
        return cls(chosen_name(settings), path)


def is_builtin(settings: Settings) -> bool:
    """Return whether the settings name the built-in model."""
    return not settings.model or (settings.model == BUILTIN_NAME and not Path(BUILTIN_NAME).exists())


def chosen_name(settings: Settings) -> str:
    """Return the name that clients use for a directory or a model of the hub. Raises `CommandFailed`."""
    name = settings.name or _own_name(settings.model)
    if len(name) > MAX_NAME:
        raise CommandFailed(
            f"{name} is too long for a model name; choose one with --name, of {MAX_NAME} characters at most"
        )
    return name


def worker_spec(
    settings: Settings, model: ChosenModel, worker: str = "w0", workers: int = 1, place: int | None = 0
) -> WorkerSpec:
    """Return the spec of the worker at a place among `workers`, which share the memory, and the cores unless `threads`
    is set; or of one more, with None as its place. Raises `CommandFailed` for a draft model that is not found."""
    draft = draft_model(settings)
    return WorkerSpec(
        name=worker,
        model_name=model.name,
        model_path=str(model.path),
        backend=settings.backend,
        device=settings.device,
        dtype=settings.dtype,
        quantize=settings.quantize,
        kv_dtype=settings.kv_dtype,
        window_cache=settings.window_cache,
        cpu=settings.cpu,
        max_batch_size=settings.max_batch_size,
        context=settings.context,
        max_queue=settings.max_queue,
        scheduler_policy=settings.scheduler_policy,
        scheduler_headroom=settings.scheduler_headroom,
        role=settings.role,
        step_tokens=settings.step_tokens,
        kv_bytes=settings.kv_bytes,
        speculate=settings.speculate,
        draft_model=str(draft.path) if draft else "",
        draft_name=draft.name if draft else "",
        adapter=str(Path(settings.adapter).expanduser().absolute()) if settings.adapter else "",
        lora_modules=adapter_directories(settings.lora_modules),
        max_loras=settings.max_loras,
        max_lora_rank=settings.max_lora_rank,
        runtime_lora=bool(settings.lora_dirs or settings.allow_lora_repos),
        sparse_prefill=settings.sparse_prefill,
        sparse_prefill_tokens=settings.sparse_prefill_tokens,
        sparse_prefill_keep=settings.sparse_prefill_keep,
        prefix_cache=settings.prefix_cache,
        prefix_bytes=settings.prefix_bytes,
        prefix_cache_bytes=tier_bytes(settings),
        prefix_cache_dir=settings.prefix_cache_dir,
        state_cache_bytes=settings.state_cache_bytes,
        image_cache_bytes=settings.image_cache_bytes,
        embeddings=settings.enable_prompt_embeds,
        vision=settings.vision,
        mmproj=projector(settings),
        parse_special=settings.parse_special,
        generation_config=settings.generation_config,
        tool_parser=settings.tool_parser,
        reasoning_parser=settings.reasoning_parser,
        cache_dir=settings.cache_dir,
        threads=settings.threads,
        threads_bind=settings.threads_bind,
        mmap=settings.mmap,
        workers=max(1, workers),
        place=place,
        sources={
            field: source
            for name, source in settings.sources.items()
            if (field := _SPEC_NAMES.get(name, name)) in WorkerSpec.__struct_fields__
        },
        log_level=settings.log_level,
        scripted=ScriptedSpec(tokens_per_second=SCRIPTED_STEPS_PER_S, images=True),
    )


def tier_bytes(settings: Settings) -> int:
    """Return the bytes of the prefix tier; 0 unless they are set, or chosen by `PrefixTierPlan`."""
    chosen = settings.prefix_cache and "prefix_cache_bytes" in settings.model_fields_set
    return settings.prefix_cache_bytes if chosen else 0


def draft_model(settings: Settings) -> ChosenModel | None:
    """Return the draft model that the settings name, downloaded from the hub if necessary; None for none. Raises
    `CommandFailed`."""
    if not settings.draft_model:
        return None
    try:
        path = resolve_model(settings.draft_model)
    except (LoadRefused, OSError) as error:
        raise CommandFailed(f"{settings.sources.get('draft_model', 'draft_model')}: {error}") from error
    return ChosenModel(_own_name(settings.draft_model)[:MAX_NAME], path)


def takes_projector(settings: Settings) -> bool:
    """Return whether a model of the hub is downloaded with the projector of images in its repository."""
    return settings.vision and settings.mmproj == MMPROJ_AUTO


def projector(settings: Settings) -> str:
    """Return the file of the projector that the settings name, downloaded from the hub if necessary; "auto" and "none"
    as they are. Raises `CommandFailed`."""
    if settings.mmproj in (MMPROJ_AUTO, MMPROJ_NONE):
        return settings.mmproj
    try:
        return str(resolve_projector(settings.mmproj).absolute())
    except (LoadRefused, OSError) as error:
        raise CommandFailed(f"{settings.sources.get('mmproj', 'mmproj')}: {error}") from error


def with_chosen_context(spec: WorkerSpec) -> WorkerSpec:
    """Return the spec with the context that is chosen now, if it leaves it open: for every incarnation of every worker
    of a server. Raises `LoadRefused` and `OSError`."""
    if spec.context or spec.backend == "scripted":
        return spec
    return replace(spec, chosen_context=describe(replace(spec, chosen_context=0)).context)


def check_model(spec: WorkerSpec, *, compile_only: bool = False) -> None:
    """Check that a worker can load the model, before any process starts. With `compile_only` this machine need not have
    the CPU. Raises `CommandFailed`."""
    try:
        backend = describe(spec, compile_only=compile_only).backend
    except LoadRefused as error:
        raise CommandFailed(str(name_source(error, spec.sources))) from error
    except OSError as error:
        raise CommandFailed(str(error)) from error
    if backend == "iree":
        _check_cache(cache_dir(spec))


def _check_cache(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(
            f"the cache directory {folder} cannot be created: {error.strerror}; set --cache-dir or BATON_CACHE_DIR"
        ) from error


def _own_name(model: str) -> str:
    """Return the name of a directory, of a GGUF file without its ending, or of a model of the hub."""
    path = Path(model).expanduser()
    if not path.exists():
        return plain_name(model)
    name = path.absolute().name if path.suffix == SUFFIX else path.resolve().name
    return SHARD.sub(r"\1", name).removesuffix(SUFFIX)
