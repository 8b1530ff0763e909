"""A scripted model whose answer the test writes."""

from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner
from workers.text.byte_tokenizer import EOS_ID


class TypingRunner(ScriptedRunner):
    """Answers each prompt of `start` tokens with one text, and then ends. A token that a mask excludes is replaced by
    one that it allows."""

    def __init__(self, answer: str, start: int, *, slots: int = 4, rate: float = 0.0) -> None:
        super().__init__(slots=slots, tokens_per_second=rate)
        self._answer = answer.encode()
        self._start = start

    def _sample(self, slot: int, spec: SampleSpec) -> int:
        at = spec.position - self._start
        token = self._answer[at] if at < len(self._answer) else EOS_ID
        if spec.mask is None or spec.mask[token // 32] >> token % 32 & 1:
            return token
        return self._allowed(spec.mask)[0]
