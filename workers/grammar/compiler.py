"""Compiles the grammars of requests for one model, and keeps the last ones."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import structlog
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from protocol.request import Grammar
from workers.grammar.check_process import CheckResult
from workers.grammar.checker import first_problem
from workers.grammar.checks import GrammarChecks
from workers.grammar.compile_credit import CompileCredit
from workers.grammar.matcher import GrammarMatcher
from workers.grammar.priority import run_demoted
from workers.grammar.refusal import GrammarRefused
from workers.grammar.runaway_limit import RunawayLimit
from workers.grammar.source import parser_limits
from workers.grammar.vocabulary import SpecialTokens, special_tokens

CACHED_GRAMMARS = 64
MAX_RUNAWAYS = 256
"""Grammars that are known to run into the limits of the check process."""
CACHED_CHARACTERS = 1 << 20
"""Characters of the sources of cached grammars. A compiled one takes up to a hundred bytes for each."""


class _Key(NamedTuple):
    kind: str
    source: str


class GrammarCompiler:
    """Compiles on any thread, one grammar at a time. Owns the vocabulary, the cache and the check process."""

    def __init__(
        self,
        load_vocabulary: Callable[[], LLTokenizer],
        make_checks: Callable[[SpecialTokens, CompileCredit], GrammarChecks] = GrammarChecks,
        limit: RunawayLimit | None = None,
    ) -> None:
        """`load_vocabulary` is called for the first grammar: a large vocabulary takes a second and 100 MB. So is
        `make_checks`."""
        self._load_vocabulary = load_vocabulary
        self._make_checks = make_checks
        self._checks: GrammarChecks | None = None
        self._credit = CompileCredit()
        self._known: LLTokenizer | None = None
        self._problem = ""
        self._compiling = threading.Lock()
        self._lock = threading.Lock()
        """Guards the cache and its matchers, which are copied and never advanced."""
        self._cache: OrderedDict[_Key, LLMatcher] = OrderedDict()
        self._limit = limit or RunawayLimit()
        self._runaways: OrderedDict[bytes, str] = OrderedDict()
        """Why grammars with these digests were refused."""
        self._log = structlog.get_logger()

    @property
    def vocabulary(self) -> LLTokenizer:
        """The vocabulary, loaded now if it is not yet. Raises `GrammarRefused`."""
        with self._compiling:
            return self._loaded()

    def cached(self, grammar: Grammar) -> bool:
        """`matcher` would not compile this grammar."""
        with self._lock:
            return _Key(grammar.kind, grammar.source) in self._cache

    def matcher(self, grammar: Grammar, *, ignore_eos: bool = False, client: str | None = None) -> GrammarMatcher:
        """Return a new matcher. Takes a second at most, once the vocabulary is loaded. Raises `GrammarRefused`.

        A new grammar is held back by what others of the same `client` took. None holds nothing back.
        """
        key = _Key(grammar.kind, grammar.source)
        found = self._copy(key)
        if found is None:
            with self._compiling:
                found = self._copy(key)
                if found is None:
                    found = self._compile(grammar, client)
                    self._keep(key, found.deep_copy())
        return GrammarMatcher(found, self._eos_mask(), grammar.field, ignore_eos=ignore_eos)

    def close(self) -> None:
        """End the check process, and with it a check that runs on another thread."""
        if self._checks is not None:
            self._checks.kill()
        with self._compiling:
            if self._checks is not None:
                self._checks.close()

    def _copy(self, key: _Key) -> LLMatcher | None:
        with self._lock:
            matcher = self._cache.get(key)
            if matcher is None:
                return None
            self._cache.move_to_end(key)
            return matcher.deep_copy()

    def _keep(self, key: _Key, matcher: LLMatcher) -> None:
        """Cache a grammar, and drop the least recently used ones beyond the bounds."""
        with self._lock:
            self._cache[key] = matcher
            while len(self._cache) > CACHED_GRAMMARS or (
                len(self._cache) > 1 and sum(len(each.source) for each in self._cache) > CACHED_CHARACTERS
            ):
                self._cache.popitem(last=False)

    def _compile(self, grammar: Grammar, client: str | None) -> LLMatcher:
        vocabulary = self._loaded()
        if self._checks is None:
            self._checks = self._make_checks(special_tokens(vocabulary), self._credit)
        checked = self._check(self._checks, grammar, client)
        make = partial(LLMatcher, vocabulary, checked.source, log_level=0, limits=parser_limits())
        # It takes about as long as the check. LLMatcher does not hold the GIL meanwhile.
        if checked.cpu_s <= self._credit.usual_s:
            self._credit.spend(checked.cpu_s)
            matcher = make()
        else:
            matcher = run_demoted(make)
        if problem := first_problem(matcher, vocabulary):
            raise GrammarRefused(problem)
        return matcher

    def _check(self, checks: GrammarChecks, grammar: Grammar, client: str | None) -> CheckResult:
        """Check a grammar, unless it is known to run into the limits, or too many others of its client did."""
        digest = hashlib.blake2b(f"{grammar.kind}:{grammar.source}".encode()).digest()
        if known := self._runaways.get(digest):
            self._runaways.move_to_end(digest)
            raise GrammarRefused(known, runaway=True)
        if client is not None and (wait_s := self._limit.wait_s(client)):
            text = f"earlier grammars of this client took too long to compile: a new grammar may be sent in {wait_s} s"
            raise GrammarRefused(text, retry_after_s=wait_s)
        try:
            return checks.check(grammar)
        except GrammarRefused as error:
            if error.runaway:
                if client is not None:
                    self._limit.count(client)
                self._runaways[digest] = str(error)
                if len(self._runaways) > MAX_RUNAWAYS:
                    self._runaways.popitem(last=False)
            raise

    def _loaded(self) -> LLTokenizer:
        if self._problem:
            raise GrammarRefused(self._problem, unsupported=True)
        if self._known is None:
            try:
                self._known = self._load_vocabulary()
            except BaseException as error:
                self._problem = f"the model's tokenizer cannot be used with grammars: {error}"
                self._log.error("vocabulary_refused", exc_info=error)
                raise GrammarRefused(self._problem, unsupported=True) from error
        return self._known

    def _eos_mask(self) -> NDArray[np.uint32]:
        vocabulary = self._loaded()
        words = np.zeros(-(-vocabulary.vocab_size // 32), np.uint32)
        for token in vocabulary.eos_tokens:
            words[token // 32] |= np.uint32(1 << token % 32)
        return words
