"""Tells which sequences of a worker it has begun to compute. Pure."""

from collections.abc import Sequence

from gateway.routing.sequence import LiveSequence


def begun_sequences(live: Sequence[LiveSequence], slots: int, reached: int) -> list[LiveSequence]:
    """Return those of a worker's sequences, in the order in which it got them, that delivered something, or whose
    prompt it had made (`reached`, see `Gauges.reached`) and which had a slot: the most urgent ones first, as many as it
    has `slots`. Workers report no more of a prefill before its end."""
    urgent_first = sorted(live, key=lambda sequence: sequence.terms.urgency.level)
    with_slot = {sequence for sequence in urgent_first[:slots] if sequence.submit.stream <= reached}
    return [each for each in live if each.tokens or each.prompt_tokens or each in with_slot]
