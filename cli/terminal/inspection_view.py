"""The tables of `baton inspect`."""

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from cli.terminal.byte_size import size
from workers.inspection.description import Description
from workers.inspection.inspection import BackendSupport, Inspection
from workers.inspection.memory_figures import MemoryFigures
from workers.inspection.served_tasks import CHAT, CLASSIFY, COMPLETIONS, EMBEDDINGS, RERANK, ServedTasks
from workers.inspection.tensor_map import StoredTensor, TensorMap
from workers.inspection.tower_view import TowerView

STYLES = {"batched": "[green]served[/], in batches", "alone": "[yellow]served[/], one request at a time"}


def show_inspection(found: Inspection, console: Console, *, tensors: bool) -> None:
    """Print what is known of a checkpoint; with `tensors` each of them, and otherwise a summary."""
    console.print(_description(found.path, found.description, found.vision))
    if found.served:
        console.print(_tasks(found.tasks, images=not found.vision.problem))
    console.print(_backends(found.backends))
    for each in found.backends:
        if each.problem:
            console.print(f"  {each.backend}: {each.problem}", markup=False, soft_wrap=True)
        if each.document:
            console.print(f"  {each.backend}: read {each.document}", markup=False, soft_wrap=True)
    if found.tensors is not None:
        console.print(_each_tensor(found.tensors) if tensors else _groups(found.tensors))
        if not tensors:
            _unread(found.tensors, console)
    if found.memory is not None:
        console.print(_weights(found.memory))
        console.print(_kv(found.memory))


def _description(path: str, found: Description, vision: TowerView) -> Table:
    table = Table(title="Checkpoint", title_justify="left", show_header=False)
    heads = f"{found.heads}, {found.kv_heads} with keys and values"
    rows = (
        ("path", path),
        ("family", found.family),
        ("architecture", found.architecture),
        ("parameters", f"{found.parameters:,}" if found.parameters else ""),
        ("layers", "; ".join(f"{count} {kind}" for kind, count in found.layers.items())),
        ("heads", (heads + (f", {found.head_dim} lanes each" if found.head_dim else "")) if found.heads else ""),
        ("experts", found.experts),
        ("context", f"{found.context} tokens" if found.context else "not stated"),
        ("vocabulary", str(found.vocabulary or "")),
        ("tokenizer", found.tokenizer or "none: requests and answers are token ids"),
        ("chat template", "yes" if found.chat_template else "no"),
        ("images", _images(vision)),
        ("files", found.format),
        ("quantization", found.quantization or "none"),
        ("number type", found.dtype),
    )
    for name, text in rows:
        if text:
            table.add_row(name, escape(text))
    return table


def _tasks(found: ServedTasks, *, images: bool) -> Table:
    table = Table("task", "endpoints", title="Served for", title_justify="left", show_header=False)
    chats = f"chats, with {'text and images' if images else 'text'}"
    kind = {"embeddings": "ranks and scores by the cosine of embeddings"}
    reranks = kind.get(found.rerank, f"ranks and scores of pairs of texts, by a {found.rerank}")
    rows = (
        (found.chat, chats, CHAT),
        (found.completions, "completions", COMPLETIONS),
        (found.embedding_width, f"embeddings of {found.embedding_width} numbers", EMBEDDINGS),
        (found.rerank, reranks, RERANK),
        (found.classifies, f"classes of texts, by {found.labels} label{'' if found.labels == 1 else 's'}", CLASSIFY),
    )
    for serves, task, endpoints in rows:
        if serves:
            table.add_row(task, ", ".join(endpoints))
    if not found.endpoints:
        table.add_row("nothing", f"no endpoint serves a classifier with {found.labels} labels")
    return table


def _images(found: TowerView) -> str:
    if found.problem:
        return f"not taken: {found.problem}"
    size = f"{found.tower}; {found.parameters:,} parameters; {found.image_tokens} tokens for 1024 x 1024 pixels"
    return f"{size}; of {found.file}" if found.file else size


def _backends(supports: tuple[BackendSupport, ...]) -> Table:
    table = Table("backend", "support", "context", title="Backends", title_justify="left")
    for each in supports:
        table.add_row(escape(each.backend), STYLES.get(each.mode, "[red]refused[/]"), str(each.context or "-"))
    return table


def _groups(tensors: TensorMap) -> Table:
    table = Table("becomes", "type", "tensors", title="Tensors", title_justify="left")
    for ours, dtype, count in tensors.groups():
        table.add_row(escape(ours), escape(dtype), str(count))
    for use, count in tensors.counts().items():
        if use != "read":
            table.add_row(f"[yellow]{use}[/]" if use == "ignored" else f"[red]{use}[/]", "", str(count))
    return table


def _unread(tensors: TensorMap, console: Console) -> None:
    """Print why tensors are not read, each reason once with the first tensor."""
    reasons: dict[tuple[str, str], StoredTensor] = {}
    for each in tensors.tensors:
        if each.use != "read":
            reasons.setdefault((each.use, each.why), each)
    for (use, why), each in reasons.items():
        console.print(f"  {use}: {each.name}: {why}", markup=False, soft_wrap=True)


def _each_tensor(tensors: TensorMap) -> Table:
    wide = (Column("tensor", overflow="fold"), "type", "shape", Column("becomes", overflow="fold"))
    table = Table(*wide, title="Tensors", title_justify="left")
    for each in tensors.tensors:
        what = ", ".join(each.to) if each.use == "read" else f"{each.use}: {each.why}"
        table.add_row(escape(each.name), each.dtype or "-", " x ".join(map(str, each.shape)), escape(what))
    return table


def _weights(memory: MemoryFigures) -> Table:
    table = Table("--quantize", "weights", title=f"Memory on {memory.backend}", title_justify="left")
    for name, count in memory.weights.items():
        table.add_row(name, "quantized already" if count is None else size(count))
    if memory.state:
        table.add_row("recurrent state", f"{size(memory.state)} for each sequence")
    return table


def _kv(memory: MemoryFigures) -> Table:
    counts = list(next(iter(memory.kv.values()), {}))
    columns = [f"{count} tokens" for count in counts]
    table = Table("--kv-dtype", *columns, title="KV cache of one sequence", title_justify="left")
    for name, by_tokens in memory.kv.items():
        table.add_row(name, *(size(by_tokens[count]) for count in counts))
    return table
