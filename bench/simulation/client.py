"""A client of a simulated gateway: it sends one request, reads its stream to the end, and checks every token."""

from dataclasses import dataclass, field

from bench.simulation.engine import MODEL, token_at
from bench.simulation.event_loop import SimulationLoop
from gateway.errors import RequestError
from gateway.generation.delta import OutputDelta, TextDelta
from gateway.generation.request import GenerationRequest, OutputOptions, SequenceRequest
from gateway.routing.admission.fair_shares import OUTPUT_COST
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.tracing.traced_request import Attempt
from protocol.request import Limits, Sampling, TokensInput

OUTPUT = OutputOptions(stream=True, with_tokens=True)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request as its client sends it."""

    key: int
    """Its number in the simulation, and the first token of its prompt."""
    client: str
    arrives_s: float
    """Seconds after the first request."""
    prompt: int
    """Tokens."""
    output: int
    """Tokens."""

    @property
    def cost(self) -> float:
        """The cost that its client's share is charged."""
        return self.prompt + OUTPUT_COST * self.output

    def request(self) -> GenerationRequest:
        """The request as a dialect decodes it."""
        tokens = (self.key, *range(1, self.prompt))
        limits = Limits(max_tokens=self.output, ignore_eos=True)
        return GenerationRequest(MODEL, (SequenceRequest(TokensInput(tokens), Sampling(), limits),), OUTPUT)


@dataclass(slots=True)
class ReceivedStream:
    """The answer that a client got, and how its request went."""

    wanted: Wanted
    outcome: str = ""
    """`finished`, the code of an error, or empty as long as nothing has ended it."""
    ends: int = 0
    """Ends that it got; every request has one."""
    tokens: int = 0
    altered: int = 0
    """Tokens that are not those of this position: altered, doubled, or after one that was lost."""
    usage: int | None = None
    """Tokens of the answer by the gateway's own count."""
    wait_s: float = 0.0
    """Seconds until it had a slot of a worker."""
    first_s: float = 0.0
    """Seconds until its first token."""
    slot_s: float = 0.0
    """Seconds for which it had one."""
    last_at: float = 0.0
    """The time of its last token."""
    restarts: int = 0
    """Times that its client sent the request again, as the gateway was gone."""
    restart_gaps_s: list[float] = field(default_factory=list, repr=False)
    """Seconds from the last token before to the first one after, for streams that had begun."""
    attempts: tuple[Attempt, ...] = field(default=(), repr=False)
    """Its workers, the first and the last of them."""


class SimulatedClient:
    """Reads one stream as the gateway's reply does. What the client itself does is of the model."""

    def __init__(self, loop: SimulationLoop, wanted: Wanted) -> None:
        self.received = ReceivedStream(wanted)
        self._loop = loop

    async def run(self, router: Router) -> None:
        """Send the request, and read its answer."""
        model, wanted = self._loop.meter.model, self.received.wanted
        request = model(wanted.request)
        try:
            group = router.admission.open(request, f"r{wanted.key}", client=wanted.client)
        except RequestError as error:
            model(self._end, str(error.code))
            return
        try:
            while True:
                await group.wait()
                ended = group.ended  # read before taking, as the reply does
                model(self._read, group.take())
                if ended and not group.unread:
                    break
            model(self._ended, group)
        finally:
            group.close()

    def begin_again(self) -> None:
        """Forget what came, as the gateway is gone."""
        self.received.tokens = 0
        self.received.restarts += 1

    def _read(self, deltas: list[OutputDelta]) -> None:
        received = self.received
        for delta in deltas:
            assert isinstance(delta, TextDelta), "nothing else was asked for"
            if delta.tokens:
                self._note_time(again=not received.tokens)
            for token in delta.tokens:
                received.altered += token != token_at(received.wanted.key, received.tokens)
                received.tokens += 1
            if delta.stop is not None:
                self._end("finished")

    def _note_time(self, *, again: bool) -> None:
        received, now = self.received, self._loop.time()
        if again and received.last_at:
            received.restart_gaps_s.append(now - received.last_at)
        received.last_at = now

    def _ended(self, group: RequestGroup) -> None:
        received, (sequence,) = self.received, group.sequences
        received.attempts = tuple(sequence.attempts)
        if group.failure is not None:
            self._end(str(group.failure.code))
        if sequence.usage is not None:
            received.usage = sequence.usage.completion_tokens
            received.wait_s = sequence.queue_s
            received.first_s = sequence.first_at - sequence.opened_at
            received.slot_s = (sequence.usage.prefill_ms + sequence.usage.decode_ms) / 1000

    def _end(self, outcome: str) -> None:
        self.received.outcome = outcome
        self.received.ends += 1
