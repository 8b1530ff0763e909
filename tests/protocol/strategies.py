"""Hypothesis strategies for every struct of the wire, built from its types, so that new fields are covered at once."""

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect as types

from tests.protocol import vocabulary

SMALL = 24
"""Longest text or list generated; the real bounds are tested at their edges in test_bounds."""


def frames(union: tuple[type[msgspec.Struct], ...]) -> st.SearchStrategy[Any]:
    return st.one_of([of_struct(struct) for struct in union])


def of_struct(struct: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.builds(struct, *[_of(field.type) for field in vocabulary.fields(struct)])


def _of(info: types.Type) -> st.SearchStrategy[Any]:
    match info:
        case types.UnionType(types=members):
            return st.one_of([_of(member) for member in members])
        case types.VarTupleType(item_type=item, min_length=low, max_length=high):
            return st.lists(_of(item), min_size=low or 0, max_size=min(high or SMALL, SMALL)).map(tuple)
        case types.StructType(cls=cls):
            return of_struct(cls)
        case types.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case types.LiteralType(values=values):
            return st.sampled_from(sorted(values, key=str))
        case types.NoneType():
            return st.none()
        case types.IntType(ge=low, le=high):
            assert low is not None
            assert high is not None
            return st.integers(low, high)
        case types.FloatType(gt=above, ge=low, le=high):
            return st.floats(above if low is None else low, high, exclude_min=low is None)
        case types.StrType(min_length=low, max_length=high):
            return st.text(st.characters(codec="utf-8"), min_size=low or 0, max_size=min(high or SMALL, SMALL))
        case types.BytesType(min_length=low, max_length=high):
            return st.binary(min_size=low or 0, max_size=min(high or SMALL, SMALL))
        case types.BoolType():
            return st.booleans()
    raise TypeError(f"no strategy for {info}")
