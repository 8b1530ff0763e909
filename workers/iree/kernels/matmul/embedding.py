"""Rows of a packed matrix as they are: the embeddings of tokens, from the tiles that the head multiplies by."""

from workers.iree.kernels.ir.builder import LANES
from workers.iree.kernels.ir.executable import Operand, dispatch
from workers.iree.kernels.matmul.packing import RUN, Packing
from workers.iree.kernels.matmul.quantized_tile import ELEMENTS


def lookup(name: str, rows: int, tiles: int, inputs: int, packing: Packing) -> str:
    """Outputs int32 [rows], a packed matrix int8 [tiles, bytes] -> their weights, float32 [rows, inputs].

    A row that the matrix does not have is its last one: nothing is read beyond it.
    """
    which = Operand("which", (rows,), "i32")
    weights = Operand("weights", packing.stored_shape(tiles * LANES, inputs), "i8")
    out = Operand("out", (rows, inputs), "f32")
    format, step = packing.format, RUN * 8 // packing.format.bits
    body = f"""
        %last = arith.constant {tiles * LANES - 1} : i32
        %lanes = arith.constant {LANES} : index
        %asked = memref.load %which[%id] : {which.inside}
        %found = arith.minui %asked, %last : i32
        %row = arith.index_cast %found : i32 to index
        %tile = arith.divui %row, %lanes : index
        %lane = arith.remui %row, %lanes : index
        %run = arith.constant {RUN} : index
        %lane_at = arith.muli %lane, %run : index
        %scale_size = arith.constant {format.scale_size} : index
        %lane_scale = arith.muli %lane, %scale_size : index
        %groups = arith.constant {inputs // format.group} : index
        %runs = arith.constant {format.group // step} : index
        %run_bytes = arith.constant {packing.run_bytes} : index
        %group_scales = arith.constant {packing.scale_bytes(format.group)} : index
        %step = arith.constant {step} : index
        scf.for %i = %c0 to %groups step %c1 {{
          %scales_before = arith.muli %i, %group_scales : index
          %scale_offset = arith.addi %scales_before, %lane_scale : index
{_number("scale", packing.level_bytes(inputs), packing, weights.inside)}
{_zero(packing, inputs, weights.inside)}
          %runs_before = arith.muli %i, %runs : index
          scf.for %j = %c0 to %runs step %c1 {{
            %at_run = arith.addi %runs_before, %j : index
            %bytes_before = arith.muli %at_run, %run_bytes : index
            %at = arith.addi %bytes_before, %lane_at : index
            %column = arith.muli %at_run, %step : index
            %bytes = vector.load %weights[%tile, %at] : {weights.inside}, vector<{RUN}xi8>
{"".join(_weights(packing, part, out.inside) for part in range(8 // format.bits))}
          }}
        }}"""
    return dispatch(name, [which, weights], [out], rows, body)


def _number(name: str, start: int, packing: Packing, weights: str) -> str:
    """Load the lane's number of a group from the tile's table at `start`, spread over a run: %`name`s."""
    kind = ELEMENTS[packing.format.scales]
    wide = f"%{name}"
    lines = [
        f"%{name}_start = arith.constant {start} : index",
        f"%{name}_at = arith.addi %{name}_start, %scale_offset : index",
        f"%{name}_bytes = vector.load %weights[%tile, %{name}_at] : {weights}, vector<{packing.format.scale_size}xi8>",
        f"%{name}_one = vector.bitcast %{name}_bytes : vector<{packing.format.scale_size}xi8> to vector<1x{kind}>",
        f"%{name}_stored = vector.extract %{name}_one[0] : {kind} from vector<1x{kind}>",
    ]
    if kind == "f32":
        wide = f"%{name}_stored"
    else:
        lines.append(f"{wide} = arith.extf %{name}_stored : {kind} to f32")
    lines.append(f"%{name}s = vector.broadcast {wide} : f32 to vector<{RUN}xf32>")
    return "\n".join(f"          {line}" for line in lines)


def _zero(packing: Packing, inputs: int, weights: str) -> str:
    if packing.format.zero == "middle":
        return f"          %zeros = arith.constant dense<{-float(packing.format.middle)}> : vector<{RUN}xf32>"
    return _number("zero", packing.level_bytes(inputs) + packing.scale_bytes(inputs), packing, weights)


def _weights(packing: Packing, part: int, out: str) -> str:
    """Store the weights of one run: with 4 bits a level, part 0 is the low halves of the bytes and part 1 the high."""
    bytes_, ints, floats = (f"vector<{RUN}x{kind}>" for kind in ("i8", "i32", "f32"))
    lines = [f"%wide{part} = arith.extui %bytes : {bytes_} to {ints}"]
    level = f"%wide{part}"
    if packing.format.bits == 4:
        lines += [
            f"%bits{part} = arith.constant dense<{4 * part}> : {ints}",
            f"%mask{part} = arith.constant dense<15> : {ints}",
            f"%moved{part} = arith.shrui %wide{part}, %bits{part} : {ints}",
            f"%half{part} = arith.andi %moved{part}, %mask{part} : {ints}",
        ]
        level = f"%half{part}"
    lines.append(f"%level{part} = arith.uitofp {level} : {ints} to {floats}")
    if packing.format.zero == "bias":
        lines.append(f"%weight{part} = math.fma %level{part}, %scales, %zeros : {floats}")
    else:
        lines += [
            f"%centred{part} = arith.addf %level{part}, %zeros : {floats}",
            f"%weight{part} = arith.mulf %centred{part}, %scales : {floats}",
        ]
    lines += [
        f"%offset{part} = arith.constant {part * RUN} : index",
        f"%column{part} = arith.addi %column, %offset{part} : index",
        f"vector.store %weight{part}, %out[%id, %column{part}] : {out}, {floats}",
    ]
    return "".join(f"            {line}\n" for line in lines)
