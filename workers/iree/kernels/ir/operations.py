"""Functions of floating-point values, from the math and vector dialects."""

from collections.abc import Sequence

from workers.iree.kernels.ir.mlir_types import Type
from workers.iree.kernels.ir.value import Value


def exp(x: Value) -> Value:
    return _unary("exp", x)


def log1p(x: Value) -> Value:
    """Return log(1 + x)."""
    return _unary("log1p", x)


def tanh(x: Value) -> Value:
    return _unary("tanh", x)


def sqrt(x: Value) -> Value:
    return _unary("sqrt", x)


def absolute(x: Value) -> Value:
    return _unary("absf", x)


def round_even(x: Value) -> Value:
    """Round a vector of float32 to the nearest integers, ties to the even ones.

    LLVM has an instruction for it on most CPUs; MLIR would expand `math.roundeven` to three dozen.
    """
    return intrinsic(f"llvm.roundeven.v{x.type.lanes}f32", [x], [Type("f32", x.type.lanes)], x.type)


def fma(a: Value, b: Value | float, c: Value | float) -> Value:
    """Return a * b + c of vectors, rounded once (`vector.fma`)."""
    return _fused("vector.fma", a, b, c)


def math_fma(a: Value, b: Value | float, c: Value | float) -> Value:
    """Return a * b + c, rounded once (`math.fma`)."""
    return _fused("math.fma", a, b, c)


def _unary(operation: str, x: Value) -> Value:
    if not x.type.is_float:
        raise TypeError(f"{operation}: {x.type} is not a floating-point type")
    return Value(x.code, x.code.let(f"math.{operation} {x.name} : {x.type}"), x.type)


def _fused(operation: str, a: Value, b: Value | float, c: Value | float) -> Value:
    _, b = a.matched(operation, b)
    _, c = a.matched(operation, c)
    if not a.type.is_float:
        raise TypeError(f"{operation}: {a.type} is not a floating-point type")
    return Value(a.code, a.code.let(f"{operation} {a.name}, {b.name}, {c.name} : {a.type}"), a.type)


def intrinsic(name: str, operands: Sequence[Value], takes: Sequence[Type], type: Type) -> Value:
    """Call an intrinsic of LLVM that takes operands of these types and returns a value."""
    if [each.type for each in operands] != list(takes):
        raise TypeError(f"{name} takes {', '.join(map(str, takes))}, not {', '.join(str(x.type) for x in operands)}")
    if any(each.code is not operands[0].code for each in operands):
        raise TypeError(f"{name}: the operands are values of different kernels")
    names, types = ", ".join(each.name for each in operands), ", ".join(str(each.type) for each in operands)
    code = operands[0].code
    return Value(code, code.let(f'llvm.call_intrinsic "{name}"({names}) : ({types}) -> {type}'), type)


def intrinsic_by_register(
    name: str, operands: Sequence[Value], takes: Sequence[Type], type: Type, target: Type
) -> Value:
    """Call an intrinsic of LLVM for each register of `type` that a result of type `target` fills.

    `takes` are the types of the registers of its operands. An operand of one register takes part in every call; of any
    other, each call takes the next register.
    """
    calls = target.lanes // type.lanes
    parts: list[Value] = []
    for number in range(calls):
        registers = [
            operand if operand.type == kind else operand.part(number * kind.lanes, kind.lanes)
            for operand, kind in zip(operands, takes, strict=True)
        ]
        parts.append(intrinsic(name, registers, takes, type))
    while len(parts) > 1:
        parts = [low.concatenate(high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
