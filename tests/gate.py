"""Reference gate for any runner: the tokens of a request in a full, changing batch are those of the request alone.

`run_gate(make_runner)` sends at least 32 requests with mixed prompt lengths (around every chunk boundary) through the
runner's slots: admitted while others run, some cancelled, some resumed, some ended by a token, greedy and seeded. It
compares every stream, token by token, with the same request run alone. Some have penalties, a bias, a mask, a grammar,
banned sequences, every filter, or log-probabilities, which must be equal as well; of some the log-probabilities of the
prompt are reported, which must be those of the plain logits of the prompt alone. With a runner that has adapters, each
has one of them or none. It raises `AssertionError` on a
difference.
"""

import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from msgspec import structs

from protocol.request import Bias, Sampling
from protocol.scheduling import Urgency
from tests.grammar_matchers import matcher_of
from tests.workers.engine.harness.batched import always_by, drafting_by_head, drafting_with
from tests.workers.engine.harness.drafting import Unlimited
from workers.engine.chunking import chunk_lengths
from workers.engine.edits.dry import Breakers
from workers.engine.engine import BatchEngine
from workers.engine.logits_processors import AllowedTokens
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import Constraint, EngineRequest
from workers.engine.runner import Chunk, Runner, RunnerCapabilities
from workers.engine.sequence import EngineSequence
from workers.engine.speculation.speculator import Speculator
from workers.engine.speculation.step_costs import StepCosts
from workers.engine.step_result import PromptPart, Token
from workers.sampling.logprobs import RowLogprobs, report_rows

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=1),
    Sampling(temperature=1.0, min_p=0.05, seed=(1 << 62) + 12345),
    Sampling(temperature=1.3, top_p=0.95, seed=7),
    Sampling(),
    Sampling(temperature=0.7, seed=1 << 40),
    Sampling(presence_penalty=1.5, frequency_penalty=0.5, logprobs=3),
    Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.3, logit_bias=(Bias(97, 4.0), Bias(98, -100.0)), seed=3),
    Sampling(temperature=1.0, frequency_penalty=2.0, logprobs=0, seed=5),
    Sampling(temperature=1.1, typical_p=0.8, top_p=0.97, seed=17),
    Sampling(dry_multiplier=3.0, dry_allowed_length=1),
    Sampling(temperature=1.2, xtc_probability=0.5, xtc_threshold=0.02, min_p=0.01, seed=19),
    Sampling(temperature=0.9, typical_p=0.9, xtc_probability=0.4, dry_multiplier=1.0, dry_range=16, top_k=60, seed=23),
)


BREAKERS = Breakers(bytes(token % 16 == 0 for token in range(64)), ((5, 7),))


@dataclass(frozen=True)
class GateReport:
    """Counts of the cases that the gate covered, so that a test can assert that they were enough."""

    requests: int
    cancelled: int
    resumed: int
    stopped: int
    full: int
    masked: int
    """Requests with a constraint, those with a grammar included."""
    grammars: int
    complete: int
    """Answers that ended because their grammar allowed nothing else."""
    reported: int
    prompts_reported: int
    """Prompts of which every token was compared with the reference."""
    tokens: int
    steps: int
    most_active: int
    shared: int
    """Prefill calls with chunks of several requests."""
    preemptions: int
    """Times that a request gave its slot or its room to another one."""
    drafted: int
    """Drafted tokens that were verified, of which so many were accepted:"""
    accepted: int


def run_gate(
    make_runner: Callable[[], Runner],
    *,
    make_reference: Callable[[], Runner] | None = None,
    requests: int = 36,
    max_tokens: int = 20,
    longest: int | None = None,
    step_tokens: int = 96,
    resume: bool = True,
    seed: int = 0,
    before_step: Callable[[], None] = lambda: None,
    preempts: bool = False,
    speculates: bool = False,
    make_draft: Callable[[], Runner] | None = None,
    by_head: bool = False,
) -> GateReport:
    """Run the gate.

    `make_reference` makes the runner of the single runs; by default they use the batch's runner, before the batch.
    `longest` bounds the prompts (default: the context). `resume` includes requests that resume tokens of their
    reference run, for which prefill and decode must be bit-exact. `before_step` is called before each step of the
    batch, to change how the runner computes. With `preempts`, which needs bit-exact rows as well, the batch has too
    little room, and some requests are more urgent than others: requests are preempted within prompts and answers. With
    `speculates` the batch verifies drafts, of any number of tokens, some of which are wrong; with `make_draft` those of
    the model on that runner, and `by_head` those of the runner's own head for multi-token prediction.
    """
    randomness = random.Random(seed)
    runner = make_runner()
    reference = make_reference() if make_reference else runner
    with contextlib.ExitStack() as undo:
        undo.callback(runner.close)
        if reference is not runner:
            undo.callback(reference.close)
        vocab = runner.capabilities.vocab_size
        planned = _requests(runner.capabilities, randomness, requests, max_tokens, longest)
        expected = {request.stream: generated_alone(reference, request) for request in planned}
        planned = [_vary(request, expected[request.stream], resume, vocab) for request in planned]
        prompts = {
            each.stream: plain_report(reference, each.prompt, each.adapter) for each in planned if each.prompt_logprobs
        }
        with mock.patch.object(runner, "prefill", side_effect=runner.prefill) as prefill:
            speculator = guessing(runner, expected, randomness) if speculates else None
            if make_draft is not None:
                drafting = drafting_with(make_draft(), lambda: randomness.randint(0, 4))
                undo.callback(drafting.close)
                speculator = always_by(drafting, runner.capabilities, beside_prompts=True)
            if by_head:
                speculator = always_by(drafting_by_head(runner), runner.capabilities, beside_prompts=True)
            report = _batch(
                runner, planned, expected, prompts, randomness, step_tokens, before_step, preempts, speculator
            )
        return replace(report, shared=sum(len(call.args[0]) > 1 for call in prefill.call_args_list))


class _Guess:
    """Drafts the tokens that a sequence had before, and here and there another one."""

    def __init__(self, sequence: EngineSequence, reference: list[Token], randomness: random.Random, vocab: int) -> None:
        self._sequence = sequence
        self._tokens = [token.token for token in reference]
        self._randomness = randomness
        self._vocab = vocab

    def draft(self, most: int) -> list[int]:
        at = self._sequence.completion_tokens
        draft = self._tokens[at : at + most]
        return [each if self._randomness.random() < 0.8 else self._randomness.randrange(self._vocab) for each in draft]


def guessing(runner: Runner, references: dict[int, list[Token]], randomness: random.Random) -> Speculator:
    """Return a speculator that mostly drafts the tokens of the reference runs, whatever it costs."""

    def lengths(_costs: StepCosts, drafts: Sequence[tuple[int, float, float]], most: int, _stake: float) -> list[int]:
        chosen, room = [], most - len(drafts)
        for length, *_ in drafts:
            chosen.append(randomness.randint(0, min(length, room)))
            room -= chosen[-1]
        return chosen

    capabilities = runner.capabilities
    return Speculator(
        capabilities,
        lambda each: [_Guess(each, references[each.request.stream], randomness, capabilities.vocab_size)],
        lengths,
        budget=Unlimited(),
        beside_prompts=True,
        fits=runner.fits,
        clock=lambda: 0.0,
    )


def alone(runner: Runner, request: EngineRequest) -> list[int]:
    """Return the tokens of one request on a separate engine: the reference that a batch must reproduce."""
    return [token.token for token in generated_alone(runner, request)]


def generated_alone(runner: Runner, request: EngineRequest) -> list[Token]:
    """Like `alone`, with the log-probabilities that the request asks for."""
    # The runner is given back as it was: nothing may stay in its slots.
    engine = BatchEngine(runner, max_queue=1, step_tokens=1 << 20, prefixes=PrefixPolicy(enabled=False))
    engine.submit(request)
    tokens: list[Token] = []
    while not engine.idle:
        result = engine.step()
        assert not result.failures, result.failures
        tokens += result.tokens
    return tokens


def plain_report(runner: Runner, prompt: tuple[int, ...], adapter: int = 0) -> list[RowLogprobs]:
    """Return the log-probabilities of prompt[1:] by the logits of its chunks, computed by numpy; slot 0 is reset."""
    out: list[RowLogprobs] = []
    for length in chunk_lengths(len(prompt), runner.capabilities.prefill_chunks):
        at = len(out)
        logits = runner.logits(Chunk(0, prompt[at : at + length], at, at, adapter=adapter))
        out += report_rows(logits, prompt[at + 1 : at + 1 + length])
    runner.reset(0)
    return out


def prompt_lengths(capabilities: RunnerCapabilities, longest: int) -> list[int]:
    """Return lengths on both sides of every chunk boundary, and the longest one."""
    sizes = capabilities.prefill_chunks
    edges = {1, 2, longest} | {chunk + step for chunk in sizes for step in (-1, 0, 1)}
    edges |= {sizes[-1] + chunk + step for chunk in sizes for step in (0, 1)} | {chunk // 2 + 1 for chunk in sizes}
    return sorted(length for length in edges if 1 <= length <= longest)


def _requests(
    capabilities: RunnerCapabilities, randomness: random.Random, count: int, max_tokens: int, longest: int | None
) -> list[EngineRequest]:
    most = min(longest or capabilities.context, capabilities.context - 3)
    lengths = prompt_lengths(capabilities, most)
    lengths += [randomness.randint(1, min(most, 2 * capabilities.prefill_chunks[0] + 8)) for _ in range(count)]
    lengths = lengths[: max(count, len(lengths) - count)]
    randomness.shuffle(lengths)
    vocab, adapters = capabilities.vocab_size, capabilities.adapter_numbers + 1
    return [
        EngineRequest(
            stream,
            tuple(randomness.randrange(vocab) for _ in range(length)),
            replace_seed(SAMPLINGS[stream % len(SAMPLINGS)], stream),
            randomness.randint(max_tokens // 2, max_tokens),
            constraint=_constraint(stream, vocab),
            bad_sequences=_bad_sequences(vocab) if stream % 6 == 5 else (),
            breakers=BREAKERS,
            tenant=str(stream % adapters) if adapters > 1 else "",
            adapter=stream % adapters,
        )
        for stream, length in enumerate(lengths)
    ]


def _has_grammar(stream: int) -> bool:
    return stream % 14 in (2, 3) and stream % 6 != 5  # whose bans could leave no first token


def _constraint(stream: int, vocab: int, resume: tuple[int, ...] = ()) -> Constraint | None:
    """Return a new constraint of a request, which has accepted the resumed tokens."""
    if _has_grammar(stream):
        return matcher_of(stream, vocab, resume)
    # Of every other token, so that many rows are masked beside others that are not.
    return AllowedTokens(range(stream % 2, vocab, 2), vocab) if stream % 7 == 6 else None


def _is_complete(stream: int, vocab: int, tokens: tuple[int, ...]) -> bool:
    """The grammar of a request allows nothing after these tokens."""
    return _has_grammar(stream) and not matcher_of(stream, vocab, tokens).mask().any()


def _bad_sequences(vocab: int) -> tuple[tuple[int, ...], ...]:
    """Every fifth token is never generated, and some tokens not after others."""
    alone = ((token,) for token in range(0, vocab, 5))
    return (*alone, *((token, token) for token in range(1, vocab, 5)))


def replace_seed(sampling: Sampling, stream: int) -> Sampling:
    """Return the sampling with a different seed, which has no effect if greedy."""
    return structs.replace(sampling, seed=sampling.seed + stream)


def _vary(request: EngineRequest, expected: list[Token], resume: bool, vocab: int) -> EngineRequest:
    """Let some requests resume tokens of their reference run, and some end at a token. Each has a new constraint."""
    ids = [token.token for token in expected]
    request = replace(request, constraint=_constraint(request.stream, vocab))
    if resume and request.stream % 5 in (1, 2):
        half = tuple(ids[: len(ids) // 2])
        return replace(request, resume=half, constraint=_constraint(request.stream, vocab, half))
    if request.stream % 5 == 0:  # the tokens of its reference run were generated without a report
        return replace(request, prompt_logprobs=True)
    if request.stream % 5 == 4:
        return replace(request, eos=frozenset({ids[len(ids) // 2]}))
    return request


def _expected(request: EngineRequest, reference: list[Token], vocab: int) -> tuple[list[Token], str]:
    """Return the tokens that the batch must emit, and the reason of the end."""
    ends = [index for index, token in enumerate(reference) if token.token in request.eos]
    if ends:
        return reference[len(request.resume) : ends[0] + 1], "stop"
    complete = _is_complete(request.stream, vocab, tuple(token.token for token in reference))
    return reference[len(request.resume) :], "stop" if complete else "length"


def _batch(
    runner: Runner,
    planned: list[EngineRequest],
    references: dict[int, list[Token]],
    prompts: dict[int, list[RowLogprobs]],
    randomness: random.Random,
    step_tokens: int,
    before_step: Callable[[], None],
    preempts: bool,
    speculator: Speculator | None,
) -> GateReport:
    room: dict[str, Any] = {"kv_tokens": runner.capabilities.context, "reserved_rows": 2} if preempts else {}
    if speculator is not None:
        room["speculator"] = speculator
        times = itertools.count()
        room["clock"] = lambda: next(times) / 1000  # a step takes as long with drafts, and no budget ends them
    engine = BatchEngine(runner, max_queue=len(planned), step_tokens=step_tokens, state_cache_bytes=1 << 28, **room)
    got: dict[int, list[Token]] = {request.stream: [] for request in planned}
    parts: dict[int, list[PromptPart]] = {stream: [] for stream in prompts}
    reasons: dict[int, str] = {}
    # Every fourth request is cancelled once it has this many tokens; 0 is before its first step.
    cancels = {request.stream: randomness.randint(0, 9) for request in planned if request.stream % 4 == 3}
    waiting = list(planned)
    most_active = 0
    while waiting or not engine.idle:
        # More than the slots at first, so that some queue; then some in every step, in the middle of the others.
        for request in [waiting.pop(0) for _ in range(min(len(waiting), 3 if got and reasons else 5))]:
            urgency = Urgency(randomness.randrange(3)) if preempts else request.urgency
            engine.submit(replace(request, urgency=urgency))
        for stream, after in cancels.items():
            if stream not in reasons and len(got[stream]) >= after and (end := engine.cancel(stream)) is not None:
                reasons[stream] = end.reason
        before_step()
        result = engine.step()
        assert not result.failures, result.failures
        most_active = max(most_active, engine.gauges().slots_active)
        for part in result.prompt_parts:
            assert not got[part.stream], "a part of the prompt after a token"
            parts[part.stream].append(part)
        for token in result.tokens:
            assert type(token.token) is int, f"the runner returned {type(token.token)}, not int"
            got[token.stream].append(token)
        for end in result.ends:
            assert end.stream not in reasons, f"stream {end.stream} ended twice"
            reasons[end.stream] = end.reason
    _compare(planned, references, got, reasons, runner.capabilities)
    complete = sum(_compare_prompt(request, prompts, parts, got) for request in planned)
    gauges = engine.gauges()
    assert (gauges.slots_active, gauges.queue_depth, gauges.kv_tokens) == (0, 0, 0), gauges
    return GateReport(
        requests=len(planned),
        cancelled=sum(reason == "cancelled" for reason in reasons.values()),
        resumed=sum(bool(request.resume) for request in planned),
        stopped=sum(reason == "stop" for reason in reasons.values()),
        full=sum(len(r.prompt) + len(references[r.stream]) == runner.capabilities.context for r in planned),
        masked=sum(request.constraint is not None for request in planned),
        grammars=sum(_has_grammar(request.stream) for request in planned),
        complete=sum(
            _is_complete(stream, runner.capabilities.vocab_size, tuple(token.token for token in references[stream]))
            and reasons[stream] == "stop"
            for stream in got
        ),
        reported=sum(token.logprobs is not None for tokens in got.values() for token in tokens),
        prompts_reported=complete,
        tokens=sum(map(len, got.values())),
        steps=gauges.steps,
        most_active=most_active,
        shared=0,
        preemptions=gauges.preemptions,
        drafted=gauges.draft_tokens,
        accepted=gauges.accepted_tokens,
    )


def _compare_prompt(
    request: EngineRequest,
    prompts: dict[int, list[RowLogprobs]],
    parts: dict[int, list[PromptPart]],
    got: dict[int, list[Token]],
) -> bool:
    """Compare the log-probabilities of a prompt; return whether they were complete."""
    if request.stream not in prompts:
        return False
    values: list[RowLogprobs | None] = []
    for part in parts[request.stream]:
        assert part.start == len(values)
        assert part.tokens == request.prompt[part.start : part.start + len(part.tokens)]
        assert len(part.logprobs) == len(part.tokens)
        values += part.logprobs
    wanted = [None, *prompts[request.stream]]
    assert values == wanted[: len(values)], f"stream {request.stream}, a prompt of {len(request.prompt)} tokens"
    assert len(values) == len(wanted) or not got[request.stream]
    return len(values) == len(wanted) > 1


def _compare(
    planned: list[EngineRequest],
    references: dict[int, list[Token]],
    got: dict[int, list[Token]],
    reasons: dict[int, str],
    capabilities: RunnerCapabilities,
) -> None:
    wrong = []
    for request in planned:
        tokens, reason = _expected(request, references[request.stream], capabilities.vocab_size)
        actual, ended = got[request.stream], reasons.get(request.stream)
        right = tokens[: len(actual)] == actual if ended == "cancelled" else (tokens, reason) == (actual, ended)
        if not right:
            chunks = chunk_lengths(len(request.prompt), capabilities.prefill_chunks)
            wrong.append(
                f"stream {request.stream} (chunks {chunks}, resume {len(request.resume)}, {request.sampling}):"
            )
            wrong.append(f"  got  {ended} {actual}\n  want {reason} {tokens}")
    assert not wrong, "\n".join(wrong)
