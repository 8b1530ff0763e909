"""Features by backend and device, asked of the code: `python -m tests.docs.features` writes them into the page.

Each cell is the result of loading small checkpoints, one for each number of bits that a row names. With IREE everything
but the compilation of graphs happens. Both columns of GPUs are loaded on a CPU: IREE's device `generic-task` has the
graphs of GPUs, and MLX's runner is given the CPU under the name of a GPU.
"""

import contextlib
import functools
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import mlx.core as mx
from gguf import GGMLQuantizationType as Type

from tests.checkpoints import make_checkpoint
from tests.quantized import requantize
from tests.workers.checkpoints.gguf.gguf_files import make_gguf
from tests.workers.checkpoints.low_bits.low_bit_files import make_low_bits
from tests.workers.tiny_encoders import make_encoder
from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.encoders.names import NAMES
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.quantization_config import BITS, Method
from workers.engine.runner import RunnerCapabilities
from workers.engine.tier.prefix_tier import PrefixTier
from workers.errors import LoadRefused
from workers.iree import runner as iree_runner
from workers.iree.device.drivers import DEFAULT_DEVICE, GENERIC_DEVICE
from workers.iree.device.gpu import GPU_TARGETS, Gpu
from workers.iree.encoder import runner as iree_encoder_runner
from workers.iree.graph_registry import ModuleRegistry
from workers.mlx.encoder import runner as mlx_encoder_runner
from workers.mlx.loading import parts as mlx_parts
from workers.process.backends import compile_ahead, load_runner
from workers.process.spec import WorkerSpec
from workers.process.startup.describe import describe

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
BEGIN, END = "<!-- made by `python -m tests.docs.features` -->\n", "<!-- end -->\n"
BLOCK = re.compile(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", re.DOTALL)

IREE_ONLY = ["falcon"]
"""Dense models that mlx-lm does not have."""
HYBRID = [name for name, family in FAMILIES.items() if family.mixers and not family.experts]
DENSE = [
    name for name, family in FAMILIES.items() if not family.experts and not family.mixers and name not in IREE_ONLY
]
MIXTURES = [name for name, family in FAMILIES.items() if family.experts]
ENCODERS = sorted(NAMES)
PLAIN_MIXTURES = ("qwen3_moe", "mixtral")
"""Mixtures of which AWQ and GGUF checkpoints are made here."""
MLX_DEVICES = {"CPU": "cpu", "GPU": "gpu"}
ALIGNED: Mapping[str, Any] = {"fields": {"moe_intermediate_size": 64, "intermediate_size": 64}}
"""Experts whose inputs are whole groups."""


@dataclass(frozen=True)
class Column:
    """A backend on a kind of device."""

    title: str
    backend: str
    device: str

    @property
    def gpu(self) -> bool:
        return self.title.endswith("GPU")

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """While this holds, a load compiles nothing and finds the device."""
        named = (self.device, mx.Device(mx.cpu))
        with (
            mock.patch.multiple(ModuleRegistry, open=lambda *_: None, fetch=lambda *_: None),
            mock.patch.object(iree_runner, "Building"),
            mock.patch.object(mlx_parts, "choose_device", return_value=named),
            mock.patch.object(mlx_parts, "maybe_set_recommended_wired_limit"),
            mock.patch.object(iree_encoder_runner, "Building"),
            mock.patch.object(mlx_encoder_runner, "choose_device", return_value=named),
            mock.patch.object(mlx_encoder_runner, "maybe_set_recommended_wired_limit"),
        ):
            yield

    def spec(self, path: Path, cache: Path, **changes: Any) -> WorkerSpec:
        named = {"backend": self.backend, "device": self.device, "context": 32, "cache_dir": str(cache)}
        return WorkerSpec("worker", "model", str(path), max_batch_size=2, **(named | changes))  # type: ignore[arg-type]


COLUMNS = (
    Column("IREE on a CPU", "iree", DEFAULT_DEVICE),
    Column("IREE on a GPU", "iree", GENERIC_DEVICE),
    Column("MLX on a CPU", "mlx", "cpu"),
    Column("MLX on a GPU", "mlx", "gpu"),
)

Make = Callable[[Path], object]
Describe = Callable[[Column, RunnerCapabilities], str]
"""The cell for a load that succeeded."""


def yes(column: Column, capabilities: RunnerCapabilities) -> str:
    return "yes"


def unpacked(column: Column, capabilities: RunnerCapabilities) -> str:
    """State whether matrices are multiplied as they are stored."""
    return "yes" if capabilities.quantization else "yes, unpacked to 16 or 32 bits"


def typed(column: Column, capabilities: RunnerCapabilities) -> str:
    """Name the drivers of IREE that lack the number type."""
    if column.backend != "iree" or not column.gpu:
        return "yes"
    facts = {"storageBuffer16BitAccess": "yes", "shaderFloat16": "yes", "vendor_id": "0x10DE"}
    lacking = [driver for driver in GPU_TARGETS if Gpu(driver, facts).lacks(capabilities.dtype)]
    return f"yes, but not with {' and '.join(lacking)}" if lacking else "yes"


@dataclass(frozen=True)
class Feature:
    """One row: checkpoints and settings that are loaded, and the cell for a load that succeeds."""

    title: str
    makes: Sequence[Make]
    settings: Mapping[str, Any] = field(default_factory=dict)
    cell: Describe = yes


def family(name: str) -> Make:
    return functools.partial(
        make_checkpoint, family=name, tied=FAMILIES[name].defaults.get("tie_word_embeddings", False)
    )


def encoder(name: str) -> Make:
    return functools.partial(make_encoder, family=name)


def quantized(method: Literal["gptq", "awq"], bits: int, name: str = "llama") -> Make:
    def make(path: Path) -> None:
        requantize(make_checkpoint(path, name, tied=not FAMILIES[name].experts, **ALIGNED), method, bits=bits)

    return make


def in_low_bits(layout: str, name: str = "llama") -> Make:
    return functools.partial(make_low_bits, name=layout, family=name, **({} if name == "llama" else ALIGNED))


def in_gguf(kind: Type, name: str = "llama") -> Make:
    def make(path: Path) -> None:
        make_gguf(make_checkpoint(path / "source", name, tied=not FAMILIES[name].experts), path / "model.gguf", kind)

    return make


def widths(method: Method) -> str:
    return ", ".join(map(str, BITS[method]))


def drafts(column: Column, capabilities: RunnerCapabilities) -> str:
    """State whether a step can verify drafted tokens."""
    return "yes" if capabilities.exact_rows and capabilities.decode_rows > 1 else "no"


def rings(column: Column, capabilities: RunnerCapabilities) -> str:
    """State whether windows take less memory."""
    return "yes" if capabilities.window_rows else "no"


LLAMA = [family("llama")]
WIDE_HEADS = [functools.partial(make_checkpoint, head_dim=32)]
FEATURES = (
    Feature(f"Dense models: {', '.join(DENSE)}", [family(name) for name in DENSE]),
    Feature(f"Dense models that mlx-lm does not have: {', '.join(IREE_ONLY)}", [family(name) for name in IREE_ONLY]),
    Feature(f"Hybrid models: {', '.join(HYBRID)}", [family(name) for name in HYBRID]),
    Feature(f"Mixtures of experts: {', '.join(MIXTURES)}", [family(name) for name in MIXTURES]),
    Feature(f"Encoders: {', '.join(ENCODERS)}", [encoder(name) for name in ENCODERS]),
    *(Feature(f"`--dtype {kind}`", LLAMA, {"dtype": kind}, typed) for kind in ("float32", "float16", "bfloat16")),
    *(Feature(f"`--quantize {kind}`", LLAMA, {"quantize": kind}, unpacked) for kind in ("int8", "int4")),
    *(Feature(f"`--kv-dtype {kind}`", WIDE_HEADS, {"kv_dtype": kind}) for kind in ("int8", "int4")),
    Feature(
        "`--window-cache ring`",
        [functools.partial(make_checkpoint, family="gemma3_text", fields={"sliding_window": 16})],
        {"window_cache": "ring", "context": 2048},
        rings,
    ),
    Feature(
        f"Checkpoints quantized by MLX ({widths('mlx')} bits)",
        [functools.partial(make_checkpoint, quantized_bits=bits) for bits in BITS["mlx"]],
        cell=unpacked,
    ),
    Feature(f"by AWQ ({widths('awq')} bits)", [quantized("awq", bits) for bits in BITS["awq"]], cell=unpacked),
    Feature(
        "by AWQ, mixtures of experts",
        [quantized("awq", bits, name) for bits in BITS["awq"] for name in PLAIN_MIXTURES],
        cell=unpacked,
    ),
    Feature(f"by GPTQ ({widths('gptq')} bits)", [quantized("gptq", bits) for bits in BITS["gptq"]], cell=unpacked),
    Feature(
        "by FP8, compressed-tensors, ModelOpt and bitsandbytes",
        [in_low_bits(layout) for layout in ("fp8-blocks", "int4-zeros", "mxfp4", "nvfp4-modelopt", "nf4-nested")],
        cell=unpacked,
    ),
    Feature(
        "by FP8 and compressed-tensors, mixtures of experts",
        [in_low_bits(layout, name) for layout in ("fp8-channel", "int4-group") for name in PLAIN_MIXTURES],
        cell=unpacked,
    ),
    Feature("GGUF files, plain (F32, F16, BF16)", [in_gguf(kind) for kind in (Type.F32, Type.F16, Type.BF16)]),
    Feature(
        "GGUF files, quantized",
        [in_gguf(kind, name) for kind in (Type.Q8_0, Type.Q4_0, Type.Q5_1) for name in ("llama", "qwen3")],
        cell=unpacked,
    ),
    Feature("GGUF files, mixtures of experts", [in_gguf(Type.BF16, name) for name in PLAIN_MIXTURES]),
    Feature("Speculative decoding", LLAMA, {"speculate": "auto"}, drafts),
    Feature(
        "`--enable-prompt-embeds`",
        LLAMA,
        {"embeddings": True},
        lambda _, capabilities: "yes" if capabilities.embedding_width else "no",
    ),
    Feature(
        "Embeddings",
        LLAMA,
        cell=lambda _, capabilities: "yes" if capabilities.hidden_width else "no",
    ),
    Feature(
        "Prefixes are reused",
        LLAMA,
        cell=lambda _, capabilities: "at any length" if capabilities.exact_rows else "up to the end of equal chunks",
    ),
    Feature(
        "Prefix tier, pinned prompts",
        LLAMA,
        cell=lambda _, capabilities: "yes" if PrefixTier.serves(capabilities) else "no",
    ),
    Feature(
        "Streams move with their cache rows (a worker that drains, prefill workers)",
        LLAMA,
        cell=lambda _, capabilities: "yes" if capabilities.exact_rows and capabilities.rows_format else "no",
    ),
    Feature(
        "Short prompts share a prefill call",
        LLAMA,
        cell=lambda _, capabilities: "yes" if capabilities.exact_rows else "no",
    ),
    Feature(
        "Memory of the KV cache is taken",
        LLAMA,
        cell=lambda _, capabilities: "as slots fill" if capabilities.kv_rows else "in full at the start",
    ),
)


@dataclass(frozen=True)
class Entry:
    """A cell, and the text of a refusal."""

    cell: str
    refusal: str = ""


def reason(error: LoadRefused) -> str:
    """The text of a refusal, without the folder of the checkpoint."""
    return f"{error.field}: {error.problem}" if isinstance(error, CheckpointError) else str(error)


def ask(feature: Feature, column: Column, folder: Path) -> Entry:
    """Load every checkpoint of a feature."""
    said = set()
    for number, make in enumerate(feature.makes):
        path = folder / f"{feature.title.replace('/', '')[:20]}-{number}-{column.title}"
        make(path)
        try:
            with column.prepared():
                runner = load_runner(column.spec(path, folder, **feature.settings), lambda *_: None)
        except LoadRefused as error:
            return Entry("no", reason(error))
        said.add(feature.cell(column, runner.capabilities))
        runner.close()
    (cell,) = said
    return Entry(cell)


def ask_compile(column: Column, folder: Path) -> Entry:
    """Compile ahead; an entry with a refusal if there is nothing to compile."""
    path = make_checkpoint(folder / f"compile-{column.title}")
    try:
        compile_ahead(column.spec(path, folder), lambda *_: None)
    except LoadRefused as error:
        return Entry("no", reason(error))
    return Entry("yes")


def ask_draft_model(column: Column, folder: Path) -> Entry:
    """Describe a model with a draft model."""
    small = make_checkpoint(folder / f"draft-{column.title}", layers=1)
    large = make_checkpoint(folder / f"drafted-{column.title}")
    try:
        describe(column.spec(large, folder, draft_model=str(small)))
    except LoadRefused as error:
        return Entry("no", reason(error))
    return Entry("yes")


def ask_head(column: Column, folder: Path) -> Entry:
    """Load a model with a head for multi-token prediction; it is left out where it cannot draft."""
    path = make_checkpoint(folder / f"head-{column.title}", "mimo")
    with column.prepared():
        runner = load_runner(column.spec(path, folder), lambda *_: None)
    head = runner.draft_head
    runner.close()
    return Entry("no" if head is None else "yes")


def block() -> str:
    """The table, and the refusals in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = {feature.title: [ask(feature, column, folder) for column in COLUMNS] for feature in FEATURES}
        rows["`--draft-model`"] = [ask_draft_model(column, folder) for column in COLUMNS]
        rows["Drafts by the model's own head (MTP): mimo"] = [ask_head(column, folder) for column in COLUMNS]
        rows["`baton compile`"] = [ask_compile(column, folder) for column in COLUMNS]
    lines = [
        f"| | {' | '.join(column.title for column in COLUMNS)} |",
        f"| --- |{' --- |' * len(COLUMNS)}",
        *(f"| {title} | {' | '.join(entry.cell for entry in entries)} |" for title, entries in rows.items()),
        "",
        "Unsupported combinations are rejected when the model is loaded:",
        "",
    ]
    refusals: dict[str, list[str]] = {}
    for title, entries in rows.items():
        for column, entry in zip(COLUMNS, entries, strict=True):
            if entry.refusal:
                refusals.setdefault(f"- {title}: `{entry.refusal.replace('`', '')}`", []).append(column.title)
    lines += [f"{text} ({', '.join(titles)})" for text, titles in refusals.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = PAGE.read_text()
    assert BLOCK.search(page), f"{PAGE} has no place for the table"
    PAGE.write_text(BLOCK.sub(lambda _: BEGIN + block() + END, page))
