"""Attention over the packed KV cache, in KV blocks that begin at the same positions for all rows.

A row's KV blocks are summed each by itself and merged in rising order. A block that a row may not see changes nothing
in it. So a row's result depends on its own positions alone, whatever rows are computed beside it, and whichever thread
sums a block.
"""

from dataclasses import replace

from workers.iree.kernels.attention.item import AttentionInputs, AttentionItem, finish_row, reach, ring_block
from workers.iree.kernels.attention.online_softmax import SoftmaxState
from workers.iree.kernels.attention.shape import KV_BLOCK, Attention
from workers.iree.kernels.ir.arithmetic import row_stride
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import live_rows
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value


def attention(name: str, kind: Attention, *, live: bool = False) -> str:
    """softmax(q k^T) v: packed words [batch * tokens, query_heads * head_dim / per_word] of scaled queries, slots int32
    [batch], rows int32 [batch, tokens], the layer and their number int32 [2], cache (, ranges int32 [2, batch, tokens])
    (, the rows' own positions int32 [batch, tokens]) (, sinks f32 [query_heads]) (, live i32 [1]) -> packed words
    [batch * tokens, row_stride] of width query_heads * value_dim, of which the first `live` rows are computed.

    A row sees the cache's rows up to its own, or those of its range. Weights are summed as they were rounded for the
    weighted sum.
    """
    kernel = Kernel(name, kind.partitions)
    inputs = replace(AttentionInputs.of(kind, kernel), sinks=_sinks(kernel, kind))
    sequences = _live_sequences(kernel, kind, live)
    rows, width = kind.shape.batch * kind.shape.tokens, kind.shape.query_heads * kind.shape.value_dim
    out = kernel.output("out", (rows, row_stride(width, kind.arithmetic)), "i32")
    write_attention(kernel.code, kernel.partition, kind, inputs, out, allocate_state(kernel.code, kind), sequences)
    return kernel.function()


def _sinks(kernel: Kernel, kind: Attention) -> Memory | None:
    """Take the logits of the sinks as a kernel's next operand, if attention has any."""
    return kernel.input("sinks", (kind.shape.query_heads,), "f32") if kind.sinks else None


def _live_sequences(kernel: Kernel, kind: Attention, live: bool) -> Value | None:
    """Take the number of live rows as a kernel's next operand where `live` is set, and return how many sequences they
    are."""
    if not live:
        return None
    rows = live_rows(kernel.input("live", (1,), "i32"), kind.shape.batch * kind.shape.tokens)
    return rows if kind.shape.tokens == 1 else (rows + (kind.shape.tokens - 1)) // kind.shape.tokens


def allocate_state(code: Code, kind: Attention) -> Memory:
    """Allocate the softmax states of an item's rows, for `write_attention`."""
    rows = kind.shared_rows * kind.item_blocks * kind.tiling.rows
    return code.allocate((rows, SoftmaxState.width(kind.shape.value_dim)), "f32")


def write_attention(
    code: Code,
    partition: Partition,
    kind: Attention,
    inputs: AttentionInputs,
    out: Memory,
    state: Memory,
    live: Value | None = None,
) -> None:
    """Write a partition of `attention`, for the first `live` sequences or all of them."""
    parts, writer = kind.items_per_head, AttentionItem(kind, code, inputs)
    batch = live or code.index(kind.shape.batch)
    low, high = partition.even_range(batch * (kind.shape.kv_heads * parts))
    last = high - 1

    def one(item: Value) -> None:
        # Neighbours are of one head: in a prompt they share what is read.
        (each, part), (after, _) = ((at // parts, at % parts) for at in (item, (item + 1).minimum(last)))
        head, sequence = each // batch, each % batch
        next_keys = writer.begin(0, after % batch, after // batch)
        writer.attend(head, sequence, part * kind.item_blocks, state, next_keys)
        writer.each_block(lambda block: writer.finish(head, sequence, part, block, state, out, block))

    def run_of_rows(item: Value) -> None:
        each, part = item // parts, item % parts
        head, sequence = each // batch, each % batch
        count = writer.runs.length(sequence, batch)

        def run() -> None:
            after = (each + count).minimum(last // parts)
            next_keys = writer.begin(0, after % batch, after // batch)
            writer.attend(head, sequence, part * kind.item_blocks, state, next_keys, count)

            def finish(number: Value) -> None:
                place = number * kind.item_blocks
                writer.each_block(
                    lambda block: writer.finish(head, sequence + number, part, block, state, out, place + block)
                )

            code.repeat(0, count, finish)

        code.when(count >= 1, run)

    code.repeat(low, high, one if kind.shared_rows == 1 else run_of_rows)


def split_attention(name: str, kind: Attention, *, live: bool = False) -> str:
    """Like `attention`, each KV block by itself -> float32 `Attention.partials_shape`, without blocks that no row
    sees."""
    kernel = Kernel(name, kind.split_partitions)
    inputs, sequences = AttentionInputs.of(kind, kernel), _live_sequences(kernel, kind, live)
    out = kernel.output("partials", kind.partials_shape, "f32")
    write_split_attention(kernel.code, kernel.partition, kind, inputs, out, sequences)
    return kernel.function()


def write_split_attention(
    code: Code, partition: Partition, kind: Attention, inputs: AttentionInputs, out: Memory, live: Value | None = None
) -> None:
    """Write a partition of `split_attention`, as `write_attention` does."""
    shape, writer = kind.shape, AttentionItem(kind, code, inputs)
    batch = live or code.index(shape.batch)

    def blocks_of(sequence: Value, rows: Value) -> tuple[Value, Value]:
        """The first KV block of a run of rows, and how many it has."""
        first, last = writer.reach_of_run(sequence, rows)
        first = first // KV_BLOCK
        return first, last // KV_BLOCK - first + 1

    def count(sequence: Value, total: list[Value]) -> list[Value]:
        rows = writer.runs.length(sequence, batch)
        return [total[0] + rows * blocks_of(sequence, rows)[1] * shape.kv_heads]

    (total,) = code.loop(0, batch, [code.index(0)], count)
    low, high = partition.even_range(total)

    def each(sequence: Value, before: list[Value]) -> list[Value]:
        rows = writer.runs.length(sequence, batch)
        first, number = blocks_of(sequence, rows)
        end = before[0] + rows * number * shape.kv_heads
        mine = end.minimum(high)

        def one(unit: Value) -> None:
            # The rows of a run are neighbours, and read the same.
            place, row = (unit - before[0]) // rows, (unit - before[0]) % rows
            next_place = (unit + 1 - before[0]).minimum(mine - before[0] - 1) // rows
            head, block = place // number, place % number + first
            next_head = next_place // number
            next_keys = writer.begin(0, sequence, next_head)
            next_block = ring_block(kind, next_place % number + first)
            next_keys = next_keys + next_block * (KV_BLOCK * shape.lane_elements[0])
            writer.write_partials(head, sequence + row, block, next_keys, out)

        code.repeat(before[0].maximum(low), mine, one)
        return [end]

    code.loop(0, batch, [code.index(0)], each)


def merge_attention(name: str, kind: Attention, *, live: bool = False) -> str:
    """The result of `split_attention`, rows int32 [batch, 1] (, sinks f32 [query_heads]) (, live i32 [1]) -> the result
    of `attention`, bitwise identical."""
    shape, kernel = kind.shape, Kernel(name, kind.merge_partitions)
    partials = kernel.input("partials", kind.partials_shape, "f32")
    rows = kernel.input("rows", (shape.batch, shape.tokens), "i32")
    sinks = _sinks(kernel, kind)
    sequences = _live_sequences(kernel, kind, live)
    out = kernel.output("out", (shape.batch, row_stride(shape.query_heads * shape.value_dim, kind.arithmetic)), "i32")
    write_merged_attention(kernel.code, kernel.partition, kind, partials, rows, out, sequences, sinks)
    return kernel.function()


def write_merged_attention(
    code: Code,
    partition: Partition,
    kind: Attention,
    partials: Memory,
    rows: Memory,
    out: Memory,
    live: Value | None = None,
    sinks: Memory | None = None,
) -> None:
    """Write a partition of `merge_attention`, as `write_attention` does."""
    shape = kind.shape
    low, high = partition.even_range((live or code.index(shape.batch)) * shape.query_heads)

    def one(row: Value) -> None:
        sequence = row // shape.query_heads
        first, last = reach(kind, code, rows, sequence)

        def merge(block: Value, state: list[Value]) -> list[Value]:
            added = SoftmaxState.load(partials, [row, ring_block(kind, block)])
            return SoftmaxState.of(state).merge(added).flat()

        start = SoftmaxState.empty(code, shape.value_dim).flat()
        state = code.loop(first // KV_BLOCK, last // KV_BLOCK + 1, start, merge)
        words = shape.value_dim // kind.arithmetic.per_word
        finish_row(kind, SoftmaxState.of(state), out, sequence, row % shape.query_heads * words, sinks)

    code.repeat(low, high, one)
