"""Runner with recurrent state that tells whose states and rows it was asked to use, and fails on demand."""

from collections.abc import Callable, Sequence
from typing import Any

from workers.engine.runner import Chunk, DecodeRow
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import STATE_BYTES, ScriptedRunner

CONTEXT = 48
SIZES = (3, 6)


class StatefulRunner(ScriptedRunner):
    """Checks that rows and states go to slots of their own tenant alone.

    Without exact rows, its state depends on the chunks that have computed it, as that of a device would.
    """

    def __init__(self, **options: Any) -> None:
        fields: dict[str, Any] = {"slots": 2, "context": CONTEXT, "vocab_size": 8, "prefill_chunks": SIZES}
        fields |= {"alphabet": tuple(range(5)), "state_bytes": STATE_BYTES}
        super().__init__(**(fields | options))
        self.tenant_of: Callable[[int], str] = lambda slot: ""
        self.owners: dict[int, str] = {}
        """The tenant whose rows each slot has."""
        self.read: dict[int, tuple[bytes, str]] = {}
        """States that were read, by their identity, with their tenants."""
        self.written = self.copied = 0
        """States that were written, and rows that were copied or kept."""
        self.failing = 0
        """Calls that fail next."""

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        for chunk in chunks:
            tenant = self.tenant_of(chunk.slot)
            assert self.owners.setdefault(chunk.slot, tenant) == tenant, "another tenant's rows"
        self._maybe_fail(chunk.slot for chunk in chunks)
        tokens = super().prefill(chunks, specs)
        if not self.capabilities.exact_rows:
            for chunk in chunks:
                self._states[chunk.slot][-1] ^= chunk.start + 1
        return tokens

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self._maybe_fail(row.slot for row in rows)
        return super().decode(rows)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        tenant = self.tenant_of(target)
        assert not length or self.owners[source] == tenant, "another tenant's rows"
        super().copy_prefix(source, target, length)
        self.owners[target] = tenant
        self.copied += length

    def read_state(self, slot: int, length: int | None = None) -> bytes:
        state = super().read_state(slot, length)
        self.read[id(state)] = (state, self.owners[slot])
        return state

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        assert isinstance(state, bytes)
        assert self.read[id(state)][1] == self.owners[slot], "another tenant's state"
        super().write_state(slot, state)
        self.written += 1

    def reset(self, slot: int) -> None:
        super().reset(slot)
        self.owners.pop(slot, None)

    def _maybe_fail(self, slots: Any) -> None:
        if self.failing:
            self.failing -= 1
            self._broken.update(slots)
            raise RuntimeError("fails on demand")
