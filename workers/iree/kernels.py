"""The kernels that are written in MLIR by hand: products and attention on packed tiles, and rotary positions.

JAX calls them as custom calls of the same name; `lower` puts these bodies in their place. Sums along the inner
dimension run inside `mmt4d`'s microkernels, in order, so a result does not depend on how many rows or positions
are computed beside it: a masked position adds exactly zero. A sum that the compiler may order is made nowhere.
"""

from dataclasses import dataclass

from workers.iree.tiles import Tiles

ELEMENT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "uint32": "ui32"}
"""MLIR's names of the element types."""


def tensor(shape: tuple[int | str, ...], element: str) -> str:
    """`tensor((2, "?"), "f32")` -> `tensor<2x?xf32>`."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def linear(name: str, rows: int, outputs: int, inputs: int, tiles: Tiles, element: str) -> str:
    """x [rows, inputs] times a packed weight [outputs / n, inputs / k, n, k], transposed -> float32 [rows, outputs]."""
    m, n, k = tiles.rows(rows), tiles.n, tiles.k
    blocks = -(-rows // m)
    x, w = tensor((rows, inputs), element), tensor((outputs // n, inputs // k, n, k), element)
    left, sums = tensor((blocks, inputs // k, m, k), element), tensor((blocks, outputs // n, m, n), "f32")
    out = tensor((rows, outputs), "f32")
    padding = f" padding_value(%zero : {element})" if rows % m else ""
    tile = "outer_dims_perm = [0, 1] inner_dims_pos = [0, 1] inner_tiles ="
    return f"""
  func.func private @{name}(%x: {x}, %w: {w}) -> {out} {{
    %zero = arith.constant 0.0 : {element}
    %zero_sum = arith.constant 0.0 : f32
    %left_empty = tensor.empty() : {left}
    %left = linalg.pack %x{padding} {tile} [{m}, {k}] into %left_empty : {x} -> {left}
    %sums_empty = tensor.empty() : {sums}
    %sums_zero = linalg.fill ins(%zero_sum : f32) outs(%sums_empty : {sums}) -> {sums}
    %sums = linalg.mmt4d ins(%left, %w : {left}, {w}) outs(%sums_zero : {sums}) -> {sums}
    %out_empty = tensor.empty() : {out}
    %out = linalg.unpack %sums {tile} [{m}, {n}] into %out_empty : {sums} -> {out}
    return %out : {out}
  }}"""


def rope(name: str, rows: int, heads: int, first: int, count: int, half: int) -> str:
    """Rotate `count` heads from `first` on of x [rows, heads, 2, half] by cos and sin [rows, half], all float32.

    (a, b) -> (a cos - b sin, b cos + a sin), each as one product and one fused multiply-add: left to the compiler,
    which of the products is fused depends on what stands around.
    """
    x, part = tensor((rows, heads, 2, half), "f32"), tensor((rows, count, half), "f32")
    angle, out = tensor((rows, half), "f32"), tensor((rows, count, 2, half), "f32")
    maps = ["(r, h, j)", "(r, h, j)", "(r, j)", "(r, j)", "(r, h, p, j)"]
    return f"""
  func.func private @{name}(%x: {x}, %cos: {angle}, %sin: {angle}) -> {out} {{
    %a = tensor.extract_slice %x[0, {first}, 0, 0] [{rows}, {count}, 1, {half}] [1, 1, 1, 1] : {x} to {part}
    %b = tensor.extract_slice %x[0, {first}, 1, 0] [{rows}, {count}, 1, {half}] [1, 1, 1, 1] : {x} to {part}
    %empty = tensor.empty() : {out}
    %zero = arith.constant 0 : index
    %out = linalg.generic {{
      indexing_maps = [{", ".join(f"affine_map<(r, h, p, j) -> {m}>" for m in maps)}],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
      ins(%a, %b, %cos, %sin : {part}, {part}, {angle}, {angle}) outs(%empty : {out}) {{
      ^bb0(%u: f32, %v: f32, %c: f32, %s: f32, %unused: f32):
        %p = linalg.index 2 : index
        %is_first = arith.cmpi eq, %p, %zero : index
        %vs = arith.mulf %v, %s : f32
        %minus = arith.negf %vs : f32
        %us = arith.mulf %u, %s : f32
        %x0 = math.fma %u, %c, %minus : f32
        %x1 = math.fma %v, %c, %us : f32
        %rotated = arith.select %is_first, %x0, %x1 : f32
        linalg.yield %rotated : f32
      }} -> {out}
    return %out : {out}
  }}"""


@dataclass(frozen=True, slots=True)
class Attention:
    """The sizes of one attention call over the cache kv [layers, 2, slots, heads, capacity * head_dim].

    A slot's keys are packed [capacity / n, head_dim / k, n, k], its values [head_dim / n, capacity / k, n, k].
    """

    layer: int
    layers: int
    slots: int
    heads: int
    """KV heads."""
    capacity: int
    head_dim: int
    batch: int
    """Slots that take part, counted from `first`."""
    rows: int
    """Query rows of one KV head: tokens times query heads of the group."""
    tiles: Tiles
    element: str

    @property
    def tile(self) -> int:
        return self.tiles.rows(self.rows)

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.tile)


def attention(name: str, a: Attention) -> str:
    """softmax(q k^T) v over the first `count` tiles of n positions, masked to positions <= `visible`.

    q [batch * heads, rows, head_dim], scaled; kv the cache; visible int32 [batch * heads, blocks, m]; first and count
    int32 scalars. Result float32 [batch * heads, rows, head_dim]. The sum of the weights is over what they were
    rounded to, like the weighted sum, and comes from the same microkernel: a product with ones.
    """
    e, m, n, k = a.element, a.tile, a.tiles.n, a.tiles.k
    batch, blocks, depth = a.batch * a.heads, a.blocks, a.head_dim
    total, pairs = a.layers * 2 * a.slots * a.heads, a.capacity // k
    rows, left = tensor((batch, a.rows, depth), e), tensor((batch, blocks, depth // k, m, k), e)
    kv = tensor((a.layers, 2, a.slots, a.heads, a.capacity * depth), e)
    flat = tensor((total, a.capacity * depth), e)
    keys_all = tensor((total, a.capacity // n, depth // k, n, k), e)
    values_all = tensor((total, depth // n, pairs, n, k), e)
    keys, values = tensor((batch, "?", depth // k, n, k), e), tensor((batch, depth // n, "?", n, k), e)
    visible, score = tensor((batch, blocks, m), "i32"), tensor((batch, blocks, "?", m, n), "f32")
    top, split = tensor((batch, blocks, m), "f32"), tensor((batch, blocks, "?", m, n // k, k), "f32")
    weight6, weight = tensor((batch, blocks, "?", n // k, m, k), e), tensor((batch, blocks, "?", m, k), e)
    ones_all, ones = tensor((1, pairs, n, k), e), tensor((1, "?", n, k), e)
    flat_weight, mass_flat = tensor((batch * blocks, "?", m, k), e), tensor((batch * blocks, 1, m, n), "f32")
    sums, mass = tensor((batch, blocks, depth // n, m, n), "f32"), tensor((batch, blocks, m, n), "f32")
    mass_rows, out = tensor((batch * blocks, m, n), "f32"), tensor((batch, a.rows, depth), "f32")
    padding = f" padding_value(%pad : {e})" if a.rows % m else ""
    tile = "outer_dims_perm = [0, 1, 2] inner_dims_pos = [1, 2] inner_tiles ="
    narrow = "%w = arith.addf %exp, %zero : f32" if e == "f32" else f"%w = arith.truncf %exp : f32 to {e}"
    return f"""
  func.func private @{name}(
      %rows: {rows}, %kv: {kv}, %visible: {visible}, %first: tensor<i32>, %count: tensor<i32>) -> {out} {{
    %zero = arith.constant 0.0 : f32
    %pad = arith.constant 0.0 : {e}
    %low = arith.constant -1.0e30 : f32
    %heads = arith.constant {a.heads} : index
    %keys_base = arith.constant {2 * a.layer * a.slots * a.heads} : index
    %values_base = arith.constant {(2 * a.layer + 1) * a.slots * a.heads} : index
    %lanes = arith.constant {n} : index
    %steps = arith.constant {n // k} : index
    %count_i32 = tensor.extract %count[] : tensor<i32>
    %tiles = arith.index_cast %count_i32 : i32 to index
    %pairs = arith.muli %tiles, %steps : index
    %first_i32 = tensor.extract %first[] : tensor<i32>
    %first_index = arith.index_cast %first_i32 : i32 to index
    %head = arith.muli %first_index, %heads : index
    %key = arith.addi %head, %keys_base : index
    %value = arith.addi %head, %values_base : index
    %flat = tensor.collapse_shape %kv [[0, 1, 2, 3], [4]] : {kv} into {flat}
    %keys_all = tensor.expand_shape %flat [[0], [1, 2, 3, 4]]
      output_shape [{total}, {a.capacity // n}, {depth // k}, {n}, {k}] : {flat} into {keys_all}
    %values_all = tensor.expand_shape %flat [[0], [1, 2, 3, 4]]
      output_shape [{total}, {depth // n}, {pairs}, {n}, {k}] : {flat} into {values_all}
    %keys = tensor.extract_slice %keys_all[%key, 0, 0, 0, 0] [{batch}, %tiles, {depth // k}, {n}, {k}]
      [1, 1, 1, 1, 1] : {keys_all} to {keys}
    %values = tensor.extract_slice %values_all[%value, 0, 0, 0, 0] [{batch}, {depth // n}, %pairs, {n}, {k}]
      [1, 1, 1, 1, 1] : {values_all} to {values}
    %left_empty = tensor.empty() : {left}
    %left = linalg.pack %rows{padding} {tile} [{m}, {k}] into %left_empty : {rows} -> {left}
    %score_empty = tensor.empty(%tiles) : {score}
    %score_zero = linalg.fill ins(%zero : f32) outs(%score_empty : {score}) -> {score}
    %score = linalg.batch_mmt4d ins(%left, %keys : {left}, {keys}) outs(%score_zero : {score}) -> {score}
    %top_empty = tensor.empty() : {top}
    %top_low = linalg.fill ins(%low : f32) outs(%top_empty : {top}) -> {top}
    %top = linalg.generic {{
      indexing_maps = [affine_map<(b, r, i, t, j) -> (b, r, t, i, j)>, affine_map<(b, r, i, t, j) -> (b, r, i)>,
                       affine_map<(b, r, i, t, j) -> (b, r, i)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}}
      ins(%score, %visible : {score}, {visible}) outs(%top_low : {top}) {{
      ^bb0(%s: f32, %last: i32, %best: f32):
        %t = linalg.index 3 : index
        %j = linalg.index 4 : index
        %start = arith.muli %t, %lanes : index
        %at = arith.addi %start, %j : index
        %at_i32 = arith.index_cast %at : index to i32
        %seen = arith.cmpi sle, %at_i32, %last : i32
        %masked = arith.select %seen, %s, %low : f32
        %max = arith.maximumf %masked, %best : f32
        linalg.yield %max : f32
      }} -> {top}
    %split = tensor.expand_shape %score [[0], [1], [2], [3], [4, 5]]
      output_shape [{batch}, {blocks}, %tiles, {m}, {n // k}, {k}] : {score} into {split}
    %weight_empty = tensor.empty(%tiles) : {weight6}
    %weight6 = linalg.generic {{
      indexing_maps = [affine_map<(b, r, t, s, i, j) -> (b, r, t, i, s, j)>,
                       affine_map<(b, r, t, s, i, j) -> (b, r, i)>, affine_map<(b, r, t, s, i, j) -> (b, r, i)>,
                       affine_map<(b, r, t, s, i, j) -> (b, r, t, s, i, j)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]}}
      ins(%split, %visible, %top : {split}, {visible}, {top}) outs(%weight_empty : {weight6}) {{
      ^bb0(%s: f32, %last: i32, %best: f32, %unused: {e}):
        %t = linalg.index 2 : index
        %s_index = linalg.index 3 : index
        %j = linalg.index 5 : index
        %start = arith.muli %t, %lanes : index
        %k = arith.constant {k} : index
        %step = arith.muli %s_index, %k : index
        %inner = arith.addi %step, %j : index
        %at = arith.addi %start, %inner : index
        %at_i32 = arith.index_cast %at : index to i32
        %seen = arith.cmpi sle, %at_i32, %last : i32
        %shifted = arith.subf %s, %best : f32
        %power = math.exp %shifted : f32
        %exp = arith.select %seen, %power, %zero : f32
        {narrow}
        linalg.yield %w : {e}
      }} -> {weight6}
    %weight = tensor.collapse_shape %weight6 [[0], [1], [2, 3], [4], [5]] : {weight6} into {weight}
    %sums_empty = tensor.empty() : {sums}
    %sums_zero = linalg.fill ins(%zero : f32) outs(%sums_empty : {sums}) -> {sums}
    %sums = linalg.batch_mmt4d ins(%weight, %values : {weight}, {values}) outs(%sums_zero : {sums}) -> {sums}
    %ones_all = arith.constant dense<1.0> : {ones_all}
    %ones = tensor.extract_slice %ones_all[0, 0, 0, 0] [1, %pairs, {n}, {k}] [1, 1, 1, 1] : {ones_all} to {ones}
    %flat_weight = tensor.collapse_shape %weight [[0, 1], [2], [3], [4]] : {weight} into {flat_weight}
    %mass_empty = tensor.empty() : {mass_flat}
    %mass_zero = linalg.fill ins(%zero : f32) outs(%mass_empty : {mass_flat}) -> {mass_flat}
    %mass_flat = linalg.mmt4d ins(%flat_weight, %ones : {flat_weight}, {ones}) outs(%mass_zero : {mass_flat})
      -> {mass_flat}
    %mass_rows = tensor.collapse_shape %mass_flat [[0], [1, 2], [3]] : {mass_flat} into {mass_rows}
    %mass = tensor.expand_shape %mass_rows [[0, 1], [2], [3]] output_shape [{batch}, {blocks}, {m}, {n}]
      : {mass_rows} into {mass}
    %mean_empty = tensor.empty() : {sums}
    %mean = linalg.generic {{
      indexing_maps = [affine_map<(b, r, d, i, j) -> (b, r, d, i, j)>, affine_map<(b, r, d, i, j) -> (b, r, i, j)>,
                       affine_map<(b, r, d, i, j) -> (b, r, d, i, j)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]}}
      ins(%sums, %mass : {sums}, {mass}) outs(%mean_empty : {sums}) {{
      ^bb0(%sum: f32, %all: f32, %unused: f32):
        %ratio = arith.divf %sum, %all : f32
        linalg.yield %ratio : f32
      }} -> {sums}
    %out_empty = tensor.empty() : {out}
    %out = linalg.unpack %mean {tile} [{m}, {n}] into %out_empty : {sums} -> {out}
    return %out : {out}
  }}"""
