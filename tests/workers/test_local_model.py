"""Local model: the same answers for all kinds of prompts, and errors that name the field."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import ErrorCode
from protocol.events import Delta, Finished
from protocol.request import Bias, ChatInput, InfillInput, Limits, Message, Sampling, TextInput, TokensInput
from tests.workers.engine.harness.drafting import always
from workers.engine.embeddings.prompt_embeddings import InvalidEmbeddings
from workers.engine.engine import BatchEngine
from workers.engine.request import RequestRefused
from workers.engine.runner import Runner
from workers.engine.sequence import EngineSequence
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import PlannedFault, raising
from workers.local_model import LocalModel, LocalModelError, mixed_prompt
from workers.process.spec import WorkerSpec
from workers.scripted.runner import ScriptedRunner
from workers.text.byte_tokenizer import ByteTokenizer

SEEDED = Sampling(temperature=1.0, seed=5)


def spec(**fields: Any) -> WorkerSpec:
    return WorkerSpec("w0", "scripted", "", backend="scripted", max_batch_size=2, **fields)


@pytest.fixture
def model() -> Iterator[LocalModel]:
    with LocalModel.open(spec()) as opened:
        yield opened


def bare(runner: Runner) -> LocalModel:
    """Return a model without a tokenizer."""
    return LocalModel(BatchEngine(runner, max_queue=1, step_tokens=64), None)


def test_the_capabilities(model: LocalModel) -> None:
    known = model.capabilities
    assert (known.backend, known.context, known.vocab_size, known.text, known.chat) == (
        "scripted",
        4096,
        257,
        True,
        True,
    )
    without = bare(ScriptedRunner()).capabilities
    assert (without.text, without.chat) == (False, False)


def test_only_allowed_tokens_are_generated(model: LocalModel) -> None:
    allowed = tuple(b"abc")
    answer = model.generate("x", Sampling(temperature=1.0, seed=3, allowed_tokens=allowed), Limits(max_tokens=40))
    assert set(answer.tokens) == set(allowed)
    assert answer.reason == "length", "an end-of-sequence token that is not allowed ends nothing"
    last = answer.tokens[-20:]
    resumed = model.stream(
        "x", Sampling(temperature=1.0, seed=3, allowed_tokens=allowed), Limits(max_tokens=40), resume=answer.tokens[:20]
    )
    assert tuple(token for each in resumed for token in each.tokens) == last


def test_a_token_that_may_be_generated_is_in_the_vocabulary(model: LocalModel) -> None:
    with pytest.raises(LocalModelError, match="`allowed_token_ids` has token 257, the vocabulary has 257") as refused:
        model.generate("x", Sampling(allowed_tokens=(1, 257)))
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID, "allowed_token_ids")


def test_allowed_tokens_that_may_not_come_first_are_refused(model: LocalModel) -> None:
    with pytest.raises(LocalModelError, match="change it or `bad_words`"):
        model.generate("x", Sampling(allowed_tokens=tuple(b"a"), bad_words=("a",)))


def test_log_probabilities_come_with_their_tokens(model: LocalModel) -> None:
    """The requested number of most likely tokens, with their bytes; none unless requested."""
    answer = model.generate("a", Sampling(logprobs=2), Limits(max_tokens=5))
    assert [each.sampled.token for each in answer.logprobs] == list(answer.tokens)
    assert all(each.top[0] == each.sampled and len(each.top) == 2 for each in answer.logprobs)
    assert b"".join(each.sampled.piece for each in answer.logprobs).decode() == answer.text
    assert [each.top for each in model.generate("a", Sampling(logprobs=0), Limits(max_tokens=2)).logprobs] == [()] * 2
    assert model.generate("a", limits=Limits(max_tokens=2)).logprobs == ()


def test_penalties_continue_in_a_resumed_answer(model: LocalModel) -> None:
    sampling = Sampling(presence_penalty=1.0, repetition_penalty=1.2, logit_bias=(Bias(97, 2.0),), logprobs=1)
    whole = model.generate("abc", sampling, Limits(max_tokens=12))
    for split in (1, 7, 11):
        rest = model.generate("abc", sampling, Limits(max_tokens=12), resume=whole.tokens[:split])
        assert rest.tokens == whole.tokens[split:]
        assert rest.logprobs == whole.logprobs[split:]


@pytest.mark.parametrize(
    ("sampling", "limits", "field"),
    [
        (Sampling(presence_penalty=2.1), Limits(), "presence_penalty"),
        (Sampling(frequency_penalty=math.nan), Limits(), "frequency_penalty"),
        (Sampling(repetition_penalty=0.0), Limits(), "repetition_penalty"),
        (Sampling(logit_bias=(Bias(257, 1.0),)), Limits(), "logit_bias"),
        (Sampling(logit_bias=(Bias(5, math.inf),)), Limits(), "logit_bias"),
        (Sampling(logprobs=21), Limits(), "logprobs"),
        (Sampling(), Limits(max_tokens=3, min_tokens=4), "min_tokens"),
    ],
)
def test_invalid_penalties_and_biases_are_refused_by_name(
    model: LocalModel, sampling: Sampling, limits: Limits, field: str
) -> None:
    with pytest.raises(LocalModelError) as refused:
        model.generate("a", sampling, limits)
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID, field)


def test_a_deadline_and_a_text_that_cannot_fit_are_refused_as_by_a_worker() -> None:
    now = [0.0]
    engine = BatchEngine(ScriptedRunner(context=64), max_queue=1, step_tokens=64)
    model = LocalModel(engine, ByteTokenizer(), clock=lambda: now[0])
    stream = model.stream("a", limits=Limits(deadline_ms=1000))
    assert isinstance(next(stream), Delta)
    now[0] = 1.0
    with pytest.raises(LocalModelError) as late:
        list(stream)
    assert (late.value.code, late.value.field) == (ErrorCode.DEADLINE, "deadline_ms")
    assert engine.idle
    with pytest.raises(LocalModelError, match="of 65 characters cannot fit"):
        model.generate("a" * 65)


@pytest.mark.parametrize("sampling", [Sampling(), SEEDED])
def test_all_kinds_of_prompts_give_the_same_tokens(model: LocalModel, sampling: Sampling) -> None:
    prompt = tuple(b"Once upon a time")
    whole = model.generate("Once upon a time", sampling, Limits(max_tokens=12))
    assert (whole.reason, whole.prompt_tokens, whole.completion_tokens) == ("length", 16, 12)
    assert bytes(whole.tokens).decode() == whole.text
    for same in (prompt, TextInput("Once upon a time"), TokensInput(prompt)):
        assert model.generate(same, sampling, Limits(max_tokens=12)) == whole
    stepped = [model.prefill(prompt, sampling)] + [model.decode_step() for _ in range(11)]
    assert tuple(stepped) == whole.tokens
    for split in range(13):
        rest = model.generate(prompt, sampling, Limits(max_tokens=12), resume=whole.tokens[:split])
        assert whole.tokens[:split] + rest.tokens == whole.tokens
        assert (rest.reason, rest.completion_tokens) == ("length", 12)


def test_a_chat_goes_through_the_template(model: LocalModel) -> None:
    chat = ChatInput((Message("user", "hello"),))
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    limits = Limits(max_tokens=5)
    assert model.generate(chat, limits=limits).tokens == model.generate(rendered, limits=limits).tokens


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(model: LocalModel) -> None:
    plain = model.generate("x", limits=Limits(max_tokens=20)).text
    stop = plain[7:10]
    stopped = model.generate("x", limits=Limits(max_tokens=20, stop=(stop,)))
    assert stopped.reason == "stop"
    assert stopped.text == plain[: plain.index(stop)]


def test_decode_step_returns_none_at_the_end() -> None:
    model = bare(ScriptedRunner(context=8))
    assert model.decode_step() is None
    model.prefill((1, 2, 3, 4, 5))
    assert [model.decode_step() is None for _ in range(4)] == [False, False, True, True]
    first = model.prefill((1, 2))
    model = bare(ScriptedRunner(context=8))
    assert model.prefill((1, 2), eos=frozenset({first})) == first
    assert model.decode_step() is None


def test_closing_a_stream_frees_the_slot_and_the_next_request_runs(model: LocalModel) -> None:
    limits = Limits(max_tokens=50)
    whole = model.generate("y", limits=limits)
    for _ in range(5):
        stream = model.stream("y", limits=limits)
        assert isinstance(next(stream), Delta)
        stream.close()
    left = model.stream("y", limits=limits)
    next(left)
    assert model.generate("y", limits=limits) == whole
    newer = model.stream("y", limits=limits)
    next(newer)
    with pytest.raises(LocalModelError, match="took its place"):
        list(left)
    assert isinstance(list(newer)[-1], Finished)
    assert isinstance(list(model.stream("y", limits=limits))[-1], Finished)


def test_scores_are_the_log_likelihoods_of_the_runners_logits(model: LocalModel) -> None:
    # The scripted runner gives one token a logit of 4, all others 0.
    likely, other = 4 - math.log(math.exp(4) + 256), -math.log(math.exp(4) + 256)
    prompt = tuple(b"a prompt that is longer than one chunk" * 9)
    answer = model.generate(prompt, limits=Limits(max_tokens=4)).tokens
    score = model.score((*prompt, *answer))
    assert len(score.log_likelihoods) == len(prompt) + 3
    assert score.log_likelihoods[-4:] == pytest.approx([likely] * 4, abs=1e-12)
    assert {round(value, 12) for value in score.log_likelihoods} == {round(likely, 12), round(other, 12)}
    assert score.total == pytest.approx(math.fsum(score.log_likelihoods))
    assert model.score("a").log_likelihoods == ()
    assert model.score("ab") == model.score(b"ab")


def test_a_score_fills_the_context_and_no_more() -> None:
    model = bare(ScriptedRunner(context=40, slots=1))
    assert len(model.score([7] * 40).log_likelihoods) == 39
    with pytest.raises(LocalModelError) as refused:
        model.score([7] * 41)
    assert (refused.value.code, refused.value.field) == (ErrorCode.CONTEXT, "prompt")


def test_a_score_that_fails_leaves_the_slot_free() -> None:
    runner = ScriptedRunner(slots=1)
    model = bare(with_faults(runner, raising({1})))
    with pytest.raises(PlannedFault):
        model.score([1, 2, 3])
    assert len(model.score([1, 2, 3]).log_likelihoods) == 2
    assert runner.violations == []


def test_a_score_needs_a_slot() -> None:
    engine = BatchEngine(ScriptedRunner(slots=1), max_queue=1, step_tokens=64)
    model = LocalModel(engine, None)
    model.prefill((1,))
    with pytest.raises(RequestRefused) as refused:
        engine.score([1, 2])
    assert refused.value.code == ErrorCode.OVERLOADED


@pytest.mark.parametrize(
    ("prompt", "sampling", "code", "field"),
    [
        ("", Sampling(), ErrorCode.INVALID, "prompt"),
        ([257], Sampling(), ErrorCode.INVALID, "prompt"),
        ([1] * 4096, Sampling(), ErrorCode.CONTEXT, "prompt"),
        ("x", Sampling(temperature=math.nan), ErrorCode.INVALID, "temperature"),
    ],
)
def test_invalid_requests_are_refused(
    model: LocalModel, prompt: Any, sampling: Sampling, code: ErrorCode, field: str
) -> None:
    with pytest.raises(LocalModelError) as refused:
        model.generate(prompt, sampling)
    assert (refused.value.code, refused.value.field) == (code, field)


def test_text_is_refused_by_name_without_a_tokenizer() -> None:
    model = bare(ScriptedRunner())
    assert len(model.generate([1, 2], limits=Limits(max_tokens=3)).tokens) == 3
    for ask in (lambda: model.generate("text"), lambda: model.score("text")):
        with pytest.raises(LocalModelError) as refused:
            ask()
        assert (refused.value.code, refused.value.field) == (ErrorCode.UNSUPPORTED, "prompt")


def test_a_failing_step_raises_and_the_model_stays_usable() -> None:
    model = LocalModel.open(spec(faults=raising((1, 3))))
    for _ in range(2):
        with pytest.raises(LocalModelError) as failed:
            model.generate("x", limits=Limits(max_tokens=3))
        assert failed.value.code == ErrorCode.STEP
    assert len(model.generate("x", limits=Limits(max_tokens=3)).tokens) == 3
    engine = BatchEngine(with_faults(ScriptedRunner(), raising({1})), max_queue=1, step_tokens=8)
    with pytest.raises(LocalModelError):
        LocalModel(engine, ByteTokenizer()).prefill([1])


def test_a_missing_model_directory_is_named(tmp_path: Path) -> None:
    from workers.checkpoints.json_files import CheckpointError

    with pytest.raises(CheckpointError, match=r"config\.json"):
        LocalModel.open(WorkerSpec("w0", "m", str(tmp_path / "none"), backend="mlx"))


@pytest.mark.parametrize("tokens", [0, 5])
def test_a_prompt_is_reported_with_the_values_of_its_score(model: LocalModel, tokens: int) -> None:
    text = "The capital of France"
    plain = model.generate(text, SEEDED, Limits(max_tokens=tokens))
    answer = model.generate(text, SEEDED, Limits(max_tokens=tokens), prompt_logprobs=2)
    assert (answer.tokens, answer.text, answer.reason, plain.prompt) == (plain.tokens, plain.text, plain.reason, ())
    assert b"".join(each.piece for each in answer.prompt).decode() == text
    first, *others = answer.prompt
    assert first.logprob is None
    score = model.score(text)
    assert [each.logprob for each in others] == pytest.approx(score.log_likelihoods, rel=1e-4)
    assert all(len(each.top) == 2 for each in others)


def test_a_gap_is_filled_between_its_texts(model: LocalModel) -> None:
    gap = model.generate(InfillInput("def f(x):\n", "\n    return y"), SEEDED, Limits(max_tokens=6))
    text = "<|fim_prefix|>def f(x):\n<|fim_suffix|>\n    return y<|fim_middle|>"
    assert (gap.text, gap.prompt_tokens) == (model.generate(text, SEEDED, Limits(max_tokens=6)).text, len(text))
    with pytest.raises(LocalModelError) as refused:
        bare(ScriptedRunner()).generate(InfillInput("a", "b"))
    assert (refused.value.code, refused.value.field) == (ErrorCode.UNSUPPORTED, "suffix")


def test_a_model_is_loaded_with_options_by_name() -> None:
    with LocalModel.load("", backend="scripted", max_batch_size=2, speculate="auto", embeddings=True) as model:
        assert model.capabilities.embedding_width == 8
        answer = model.generate("x", limits=Limits(max_tokens=6))
        assert (answer.stats.prompt_tokens, answer.stats.completion_tokens) == (1, 6)
    options: list[dict[str, Any]] = [{"max_batch_size": 0}, {"dtype": "int3"}, {"no_such_option": 1}]
    for wrong in options:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            LocalModel.load("", backend="scripted", **wrong)


class KnownAnswer:
    """Drafts the tokens of an answer that is known."""

    def __init__(self, sequence: EngineSequence, answer: Sequence[int]) -> None:
        self._sequence, self._answer = sequence, answer

    def draft(self, most: int) -> Sequence[int]:
        at = self._sequence.completion_tokens
        return self._answer[at : at + most]


def test_drafts_are_counted_for_each_request() -> None:
    runner = ScriptedRunner(slots=2, decode_rows=5)
    answer = bare(runner).generate((1, 2), limits=Limits(max_tokens=20)).tokens
    speculator = always(runner.capabilities, lambda sequence: [KnownAnswer(sequence, answer)])
    engine = BatchEngine(runner, max_queue=1, step_tokens=64, speculator=speculator, clock=lambda: 0.0)
    with LocalModel(engine, None) as model:
        first, second = (model.generate((1, 2), limits=Limits(max_tokens=20)) for _ in range(2))
        assert first.tokens == second.tokens == answer
        assert first.stats.drafted_tokens == first.stats.accepted_tokens == 15
        assert second.stats.drafted_tokens == 15
        assert model.stats().drafted_tokens == model.stats().accepted_tokens == 30


def test_a_prompt_may_have_rows_of_embeddings(model: LocalModel) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(3, 8)
    mixed = mixed_prompt(b"before", rows, b"after")
    with pytest.raises(LocalModelError, match="loaded without --enable-prompt-embeds") as refused:
        model.generate(mixed)
    assert (refused.value.code, refused.value.field) == (ErrorCode.UNSUPPORTED, "prompt_embeds")
    with LocalModel.open(spec(embeddings=True)) as able:
        answer = able.generate(mixed, SEEDED, Limits(max_tokens=9))
        assert answer.prompt_tokens == len(b"before") + 3 + len(b"after")
        assert able.prefill(mixed, SEEDED) == answer.tokens[0]
        resumed = able.generate(mixed, SEEDED, Limits(max_tokens=9), resume=answer.tokens[:4])
        assert resumed.tokens == answer.tokens[4:]
        assert able.generate(mixed_prompt(rows.astype(np.float16)), SEEDED, Limits(max_tokens=3)).prompt_tokens == 3
        same = mixed_prompt(b"before", rows[:1], rows[1:], b"after")
        assert able.generate(same, SEEDED, Limits(max_tokens=9)) == answer
        wide = mixed_prompt(np.ones((1, 9), np.float32))
        with pytest.raises(LocalModelError, match="hidden size of the model is 8"):
            able.generate(wide)
        with pytest.raises(LocalModelError, match="not finite"):
            able.prefill(mixed_prompt(np.full((1, 8), np.nan, np.float32)))
    with pytest.raises(InvalidEmbeddings, match="not int64"):
        mixed_prompt(np.ones((1, 8), np.int64))
