"""A record of what one client received, and checks of it: every token once, in order, and one end."""

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cli.client.event_parser import DONE

MAX_SHOWN = 300
"""Characters that are shown of data that is not a JSON object."""


@dataclass
class ChoiceTranscript:
    """The received part of one choice."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Its finish reasons. A correct answer has one."""


@dataclass
class Transcript:
    """All that one client received of one answer."""

    status: int = 0
    choices: dict[int, ChoiceTranscript] = field(default_factory=dict)
    response_ids: set[str] = field(default_factory=set)
    """The `id` of every chunk. A correct answer has one."""
    usages: list[tuple[int, int]] = field(default_factory=list)
    """Prompt and completion tokens of each usage report."""
    errors: list[tuple[str, str]] = field(default_factory=list)
    """Code and message of each error."""
    ends: int = 0
    """The number of `[DONE]` events."""
    late: int = 0
    """The number of events after the first `[DONE]`."""
    stamps: list[float] = field(default_factory=list)
    """Times of arrival of the chunks with a choice, in seconds of `time.perf_counter`."""
    continued: bool = False
    """The answer is labelled as continued on a worker of another kind."""
    request_id: str = ""
    """The server's id of the request, which its log lines have."""

    def add_event(self, data: bytes) -> None:
        """Record the data of a server-sent event."""
        self.late += self.ends > 0
        if data == DONE:
            self.ends += 1
        else:
            self._add_object(_parse(data))

    def add_body(self, body: bytes) -> None:
        """Record the body of a response that is not streamed, which is its own end."""
        self._add_object(_parse(body))
        self.ends += 1

    def _add_object(self, value: Mapping[str, Any]) -> None:
        if "error" in value:
            error = value["error"]
            self.errors.append((str(error.get("code")), str(error.get("message"))))
            return
        self.response_ids.add(str(value.get("id")))
        self.continued = self.continued or bool((value.get("baton") or {}).get("continued"))
        if usage := value.get("usage"):
            self.usages.append((usage["prompt_tokens"], usage["completion_tokens"]))
        for each in value.get("choices") or ():
            self._add_choice(each)

    def _add_choice(self, each: Mapping[str, Any]) -> None:
        choice = self.choices.setdefault(each["index"], ChoiceTranscript())
        message = each.get("message") or each.get("delta") or {}
        choice.text += each.get("text") or message.get("content") or ""
        choice.ids += each.get("token_ids") or ()
        if each.get("finish_reason"):
            choice.reasons.append(each["finish_reason"])
        self.stamps.append(time.perf_counter())

    @property
    def tokens(self) -> int:
        """The number of token ids of all choices."""
        return sum(len(choice.ids) for choice in self.choices.values())

    def violation(self, count: int) -> str:
        """Describe how the end of this answer with `count` choices is wrong. Empty if it is correct.

        A correct answer has one `[DONE]` with nothing after it, and either one error, or one finish reason for each
        choice, one usage report and one id.
        """
        if self.ends != 1 or self.late:
            return f"{self.ends} ends and {self.late} events after the first one"
        if self.errors:
            return "" if len(self.errors) == 1 else f"{len(self.errors)} errors"
        reasons = [len(choice.reasons) for choice in self.choices.values()]
        if sorted(self.choices) != list(range(count)) or reasons != [1] * count:
            return (
                f"finish reasons by choice: {dict(zip(self.choices, reasons, strict=True))}, {count} choices asked for"
            )
        if len(self.usages) != 1:
            return f"{len(self.usages)} usages"
        return "" if len(self.response_ids) == 1 else f"ids {sorted(self.response_ids)}"

    def same(self, other: "Transcript") -> bool:
        """Return whether tokens, text, finish reasons and usage are equal."""
        return (self.choices, self.usages) == (other.choices, other.usages)

    def is_prefix_of(self, other: "Transcript") -> bool:
        """Return whether the text and the tokens of each choice are a prefix of the other's."""
        return all(
            index in other.choices
            and other.choices[index].text.startswith(choice.text)
            and other.choices[index].ids[: len(choice.ids)] == choice.ids
            for index, choice in self.choices.items()
        )

    def gap(self, since: float = 0.0) -> float:
        """Return the longest time between two chunks that ended after `since`, in seconds; 0 without chunks."""
        pairs = itertools.pairwise(self.stamps)
        return max((after - before for before, after in pairs if after > since), default=0.0)


def _parse(data: bytes) -> Mapping[str, Any]:
    """Decode a JSON object. Data that is not one becomes an error of the server with the code `no_json`."""
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError:
        value = None
    if isinstance(value, dict):
        return value
    return {"error": {"code": "no_json", "message": data[:MAX_SHOWN].decode("utf-8", "replace")}}
