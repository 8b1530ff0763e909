"""Tokens a second with a draft model and without, by how many of its tokens are accepted.

    python bench/overhead/draft_model.py [--model 110m] [--draft-model 10m] [--streams 1 4 8] [--accepted 0.9 0.7 0]

The weights are random, so the draft model would never be right. It computes all that it would, and its tokens are then
replaced by those of the answer, which are known from the run without drafts: each with the given probability. With 0 it
is the bound on what a draft model costs that is of no use. `--temperature` samples the answers. Each is measured with
and without drafts in turn, in the same process; figures are medians over the rounds, the ratio that of pairs.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, not_negative, parsed
from bench.harness.engine import Setup
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_model, add_quantize
from bench.harness.paired_engines import compared
from bench.harness.settled import load_settled
from bench.harness.shapes import SHAPES, TOKENS, make_model
from protocol.events import Gauges
from protocol.request import Sampling
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.engine.sequence import EngineSequence
from workers.engine.speculation.batched.batch_drafting import BatchDrafting
from workers.engine.speculation.batched.draft_model import DraftModel
from workers.engine.speculation.batched.open_draft import OpenDraft
from workers.engine.speculation.speculator import Speculator

CONTEXT = 1024
Answers = dict[int, list[int]]


class GivenDraft(OpenDraft):
    """A draft that gets the tokens of a known answer, each with a probability, instead of those that were sampled."""

    def __init__(self, given: OpenDraft, answer: Sequence[int], accepted: float, randomness: random.Random) -> None:
        self._given = given
        self._answer = answer
        self._accepted = accepted
        self._random = randomness
        self.sequence, self.tokens, self.specs, self.spec = given.sequence, given.tokens, given.specs, given.spec

    @property
    def done(self) -> bool:
        """No token can be appended any more."""
        return self._given.done

    def append(self, token: int) -> None:
        """Append the next token of the answer, or a wrong one."""
        at = self.sequence.completion_tokens + len(self.tokens)
        right = self._answer[min(at, len(self._answer) - 1)]
        wrong = right + 1 if right + 1 < max(TOKENS) else min(TOKENS)
        self._given.append(right if self._random.random() < self._accepted else wrong)
        self.spec = self._given.spec


class GivenModel(DraftModel):
    """A draft model of which a part of the tokens is accepted."""

    def __init__(self, runner: Runner, accepted: float) -> None:
        super().__init__(runner)
        self.answers: Answers = {}
        self._accepted = accepted
        self._random = random.Random(1)

    def draft(self, drafts: Sequence[OpenDraft]) -> None:
        super().draft([self._given(each, each.sequence) for each in drafts])

    def _given(self, draft: OpenDraft, sequence: EngineSequence) -> OpenDraft:
        return GivenDraft(draft, self.answers[sequence.request.stream], self._accepted, self._random)


class NoDrafter:
    """Drafts nothing: answers of random weights repeat themselves, which prompt lookup would find."""

    def draft(self, most: int) -> Sequence[int]:
        """Return no token."""
        return ()


def run(
    runner: Runner, requests: Sequence[EngineRequest], speculator: Speculator | None
) -> tuple[float, Answers, Gauges]:
    """Return the tokens a second of streams that all decode, and their answers."""
    engine = BatchEngine(
        runner, max_queue=0, step_tokens=1 << 20, prefixes=PrefixPolicy(enabled=False), speculator=speculator
    )
    for request in requests:
        engine.submit(request)
    answers: Answers = {request.stream: [] for request in requests}
    before, began = 0, 0.0
    while not engine.idle:
        result = engine.step()
        if result.failures:
            raise RuntimeError(result.failures[0].text)
        for token in result.tokens:
            answers[token.stream].append(token.token)
        if not began and all(answers.values()):
            before, began = engine.gauges().decode_tokens, time.perf_counter()
    return (engine.gauges().decode_tokens - before) / (time.perf_counter() - began), answers, engine.gauges()


def compare(
    off: Runner,
    on: Runner,
    speculator: Speculator,
    rounds: int,
    requests: Callable[[random.Random], Sequence[EngineRequest]],
    tell: Callable[[Answers], None] = lambda _: None,
) -> str:
    """Return the columns of a table for two runners, or for one with drafts and without, in turn. `tell` gets the
    answers without drafts before the same requests are answered with them. Raises `RuntimeError` if they differ."""
    pairs, gauges = [], Gauges()
    for seed in range(-1, rounds):
        asked = requests(random.Random(seed))
        without, answers, _ = run(off, asked, None)
        tell(answers)
        drafted, same, gauges = run(on, asked, speculator)
        if same != answers:
            raise RuntimeError("drafts have changed an answer")
        if seed >= 0:  # the first ones may wait for graphs
            pairs.append((without, drafted))
        else:
            off.settle()
            on.settle()
            speculator.settle()
    return compared(pairs, gauges)


def measure(target: Runner, draft: Runner, accepted: float, streams: int, args: argparse.Namespace) -> str:
    """Return a line of the table."""
    model = GivenModel(draft, accepted)
    drafting = BatchDrafting(model, draft.capabilities.weight_bytes / target.capabilities.weight_bytes)
    speculator = Speculator(target.capabilities, lambda _: [NoDrafter()], batched=drafting)

    def requests(randomness: random.Random) -> list[EngineRequest]:
        return [
            EngineRequest(
                stream,
                tuple(randomness.choices(TOKENS, k=args.prompt)),
                Sampling(temperature=args.temperature, seed=stream),
                args.max_tokens,
            )
            for stream in range(streams)
        ]

    columns = compare(target, target, speculator, args.rounds, requests, model.answers.update)
    return f"{accepted:8.2f} {streams:7} {columns}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    parser.add_argument("--draft-model", choices=sorted(SHAPES), default="10m", help="the shape of the draft model")
    add_quantize(parser)
    parser.add_argument("--streams", type=at_least(1), nargs="+", default=[1, 4, 8], help="at once")
    parser.add_argument(
        "--accepted", type=not_negative, nargs="+", default=[0.9, 0.7, 0.0], help="part of the drafted tokens"
    )
    parser.add_argument("--prompt", type=at_least(1), default=128, help="tokens of a prompt")
    parser.add_argument("--max-tokens", type=at_least(2), default=200, help="tokens of an answer")
    parser.add_argument("--temperature", type=not_negative, default=0.0, help="of the answers")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="runs of each, in turn; medians are printed")
    add_cache_dir(parser)
    smoke = {"model": "tiny", "draft_model": "tiny", "streams": [1], "accepted": [0.9], "max_tokens": 40, "rounds": 1}
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    slots, context = (SMOKE_SLOTS, SMOKE_CONTEXT) if args.smoke else (max(8, *args.streams), CONTEXT)

    def load(shape: str) -> Runner:
        setup = Setup(make_model(args.cache_dir, shape), args.cache_dir, slots, context, quantize=args.quantize)
        return load_settled(setup.spec())

    target, draft = load(args.model), load(args.draft_model)
    try:
        print("accepted streams  off tok/s   on tok/s    ratio  drafted  accepted")
        for accepted in args.accepted:
            for streams in args.streams:
                print(measure(target, draft, accepted, streams, args), flush=True)
    finally:
        draft.close()
        target.close()


if __name__ == "__main__":
    main()
