"""Walks instances through the grammars of their schemas, token by token, and times every mask."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.structured.schemas import Example
from protocol.request import Grammar
from workers.engine.request import ConstraintFailed
from workers.grammar.compiler import GrammarCompiler
from workers.grammar.matcher import GrammarMatcher
from workers.grammar.refusal import GrammarRefused

SHOWN = 10
"""Instances that were taken for the opposite, by name."""


@dataclass
class MaskFigures:
    """Results of the schemas. Times of masks are processor time of the calling thread, the others wall time."""

    schemas: int = 0
    refused: int = 0
    accepted: int = 0
    """Valid instances that were accepted, of `valid`."""
    valid: int = 0
    rejected: int = 0
    """Invalid instances that were rejected, of `invalid`."""
    invalid: int = 0
    masks: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    """Seconds from a grammar to its first mask, with the check process."""
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"schemas {self.schemas}, refused {self.refused}"
        yield f"valid instances accepted {self.accepted} of {self.valid}"
        yield f"invalid instances rejected {self.rejected} of {self.invalid}"
        yield f"us a mask: {quantiles(self.masks, 1e6)}, {len(self.masks)} masks"
        yield f"ms to the first mask: {quantiles(self.first, 1e3)}"
        for name in self.wrong[:SHOWN]:
            yield f"wrong: {name}"


def quantiles(seconds: list[float], unit: float) -> str:
    values = np.array(seconds or [0.0]) * unit
    p50, p99, p999 = np.quantile(values, (0.5, 0.99, 0.999))
    return f"avg {values.mean():.1f} p50 {p50:.1f} p99 {p99:.1f} p99.9 {p999:.1f} max {values.max():.1f}"


def measure_masks(compiler: GrammarCompiler, examples: Iterable[Example]) -> MaskFigures:
    """Compile every schema, and walk all of its instances."""
    figures = MaskFigures()
    compiler.matcher(Grammar("json_object"))  # loads the vocabulary, and starts the check process
    for example in examples:
        figures.schemas += 1
        grammar = Grammar("json_schema", json.dumps(example.schema))
        began = time.perf_counter()
        try:
            compiler.matcher(grammar).mask()
        except (GrammarRefused, ConstraintFailed):
            figures.refused += 1
            continue
        figures.first.append(time.perf_counter() - began)
        for instance in example.valid:
            figures.valid += 1
            if _walk(compiler, grammar, instance, figures.masks):
                figures.accepted += 1
            else:
                figures.wrong.append(f"{example.name}: a valid instance was rejected")
        for instance in example.invalid:
            figures.invalid += 1
            if _walk(compiler, grammar, instance, figures.masks):
                figures.wrong.append(f"{example.name}: an invalid instance was accepted")
            else:
                figures.rejected += 1
    return figures


def _walk(compiler: GrammarCompiler, grammar: Grammar, instance: Any, masks: list[float]) -> bool:
    """Return whether the grammar allows the instance as a whole answer."""
    matcher = compiler.matcher(grammar)
    try:
        for token in compiler.vocabulary.tokenize_str(json.dumps(instance, ensure_ascii=False)):
            if not _allows(_timed_mask(matcher, masks), token):
                return False
            matcher.accept(token)
        last = _timed_mask(matcher, masks)
    except ConstraintFailed:
        return False
    return not last.any() or any(_allows(last, token) for token in compiler.vocabulary.eos_tokens)


def _timed_mask(matcher: GrammarMatcher, masks: list[float]) -> Any:
    began = time.thread_time()
    mask = matcher.mask()
    masks.append(time.thread_time() - began)
    return mask


def _allows(mask: Any, token: int) -> bool:
    return bool(mask[token // 32] >> np.uint32(token % 32) & np.uint32(1))
