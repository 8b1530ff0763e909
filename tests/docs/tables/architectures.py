"""Architectures by format and backend, asked of the code: `python -m tests.docs.tables.architectures` writes the table.

Each cell is the result of loading a small checkpoint of the architecture in that format by both backends for CPUs, as
in `tests.docs.features`.
"""

import functools
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Type

from tests.checkpoints import make_checkpoint
from tests.docs.features import COLUMNS, PAGE, reason
from tests.families import FAMILIES
from tests.quantized import requantize
from tests.workers.checkpoints.gguf.gguf_files import ARCHITECTURES as GGUF
from tests.workers.checkpoints.gguf.gguf_files import make_gguf
from tests.workers.checkpoints.low_bits.low_bit_files import make_low_bits
from workers.checkpoints.architectures.families import FAMILIES as SERVED
from workers.errors import LoadRefused
from workers.process.backends import load_runner

BEGIN, END = "<!-- made by `python -m tests.docs.tables.architectures` -->\n", "<!-- architectures end -->\n"
BLOCK = re.compile(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", re.DOTALL)
BACKENDS = {column.backend: column for column in COLUMNS if not column.gpu}
TITLES = {"iree": "IREE", "mlx": "MLX"}
GROUPS: Mapping[str, Any] = {
    "block_ffn_dim_multiplier": 1.5,
    "moe_intermediate_size": 64,
    "intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "shared_intermediate_size": 64,
    "hidden_size_per_layer_input": 32,
}
"""Widths of whole groups, of the families whose checkpoints have others."""
Make = Callable[[Path, str], object]


def options(family: str) -> dict[str, Any]:
    """Return options with which the inputs of all matrices are whole groups, and those that GGUF files can say."""
    fields = FAMILIES[family].fields(2)
    changed = {name: value for name, value in GROUPS.items() if fields.get(name)}
    widths = {"intermediate_size": 64} if "moe_intermediate_size" in fields else {}
    windows = {"sliding_window": None} if family == "starcoder2" else {}
    tied = SERVED[family].defaults.get("tie_word_embeddings", False)
    return {"fields": changed | widths | windows, "tied": tied}


def plain(path: Path, family: str, **changes: Any) -> object:
    return make_checkpoint(path, family, **options(family), **changes)


def gptq(path: Path, family: str) -> None:
    plain(path, family)
    requantize(path, "gptq")


def awq(path: Path, family: str) -> None:
    plain(path, family)
    requantize(path, "awq")


def fp8(path: Path, family: str) -> None:
    make_low_bits(path, name="fp8-channel", family=family, fields=options(family)["fields"])


def gguf(kind: Type) -> Make:
    def make(path: Path, family: str) -> None:
        plain(path / "source", family)
        make_gguf(path / "source", path / "model.gguf", kind)

    return make


FORMATS: Mapping[str, tuple[Make, Mapping[str, str]]] = {
    "bfloat16": (plain, {"dtype": "bfloat16"}),
    "`--quantize int8`": (plain, {"quantize": "int8"}),
    "`--quantize int4`": (plain, {"quantize": "int4"}),
    "MLX 4 bits": (functools.partial(plain, quantized_bits=4), {}),
    "AWQ": (awq, {}),
    "GPTQ": (gptq, {}),
    "FP8": (fp8, {}),
    "GGUF F16": (gguf(Type.F16), {}),
    "GGUF Q8_0": (gguf(Type.Q8_0), {}),
}
"""The formats by their titles: a function that makes a checkpoint, and settings of a worker."""

NOT_MADE: Mapping[str, tuple[str, ...]] = {"gpt_oss": ("MLX 4 bits", "AWQ", "GPTQ", "FP8")}
"""Formats that nobody publishes an architecture in."""


def cell(family: str, title: str, folder: Path, refusals: dict[str, list[str]]) -> str:
    """Load a checkpoint by both backends. Adds the texts of refusals to `refusals`."""
    make, settings = FORMATS[title]
    if title in NOT_MADE.get(family, ()):
        return ""
    if title.startswith("GGUF") and family not in GGUF:
        return "no"
    path = folder / f"{family}-{list(FORMATS).index(title)}"
    make(path, family)
    served = []
    for backend, column in BACKENDS.items():
        try:
            with column.prepared():
                load_runner(column.spec(path, folder, **settings), lambda *_: None).close()
        except LoadRefused as error:
            refusals.setdefault(reason(error), []).append(f"{family}, {title}, {TITLES[backend]}")
        else:
            served.append(TITLES[backend])
    return " and ".join(served) or "no"


def block(families: Sequence[str] = tuple(FAMILIES)) -> str:
    """The table."""
    refusals: dict[str, list[str]] = {}
    lines = [f"| | {' | '.join(FORMATS)} |", f"| --- |{' --- |' * len(FORMATS)}"]
    for family in families:
        with tempfile.TemporaryDirectory() as name:
            cells = [cell(family, title, Path(name), refusals) for title in FORMATS]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(block(sys.argv[1:]))
    else:
        page = PAGE.read_text()
        assert BLOCK.search(page), f"{PAGE} has no place for the table"
        PAGE.write_text(BLOCK.sub(lambda _: BEGIN + block() + END, page))
