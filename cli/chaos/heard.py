"""What one client heard of its request, and whether that is what a client must hear: everything once, in order."""

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cli.client.event_parser import DONE

MAX_PROBLEM = 300
"""Characters of an answer that are shown of one that is none."""


@dataclass
class Choice:
    """One sequence of an answer."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Its finish reasons, of which there must be one."""


@dataclass
class Heard:
    """All that came, in the order in which it came."""

    status: int = 0
    choices: dict[int, Choice] = field(default_factory=dict)
    answers: set[str] = field(default_factory=set)
    """The ids under which chunks came."""
    usages: list[tuple[int, int]] = field(default_factory=list)
    """Prompt and completion tokens."""
    errors: list[tuple[str, str]] = field(default_factory=list)
    """Code and message."""
    ends: int = 0
    """`[DONE]` events."""
    late: int = 0
    """Events after the first `[DONE]`."""
    stamps: list[float] = field(default_factory=list)
    """When each chunk with a choice came, in seconds of `time.perf_counter`."""
    continued: bool = False
    """The answer says that an unlike worker went on with it."""
    request: str = ""
    """The id that the server gave the request, by which its log knows it."""

    def event(self, data: bytes) -> None:
        """The data of one server-sent event."""
        self.late += self.ends > 0
        if data == DONE:
            self.ends += 1
        else:
            self.chunk(_parse(data))

    def chunk(self, value: Mapping[str, Any]) -> None:
        """A JSON object: one chunk of a stream, or a whole answer."""
        if "error" in value:
            error = value["error"]
            self.errors.append((str(error.get("code")), str(error.get("message"))))
            return
        self.answers.add(str(value.get("id")))
        self.continued = self.continued or bool((value.get("baton") or {}).get("continued"))
        if usage := value.get("usage"):
            self.usages.append((usage["prompt_tokens"], usage["completion_tokens"]))
        for each in value.get("choices") or ():
            self._add(each)

    def whole(self, body: bytes) -> None:
        """A whole answer or a refusal, which is its own end."""
        self.chunk(_parse(body))
        self.ends += 1

    def _add(self, each: Mapping[str, Any]) -> None:
        choice = self.choices.setdefault(each["index"], Choice())
        message = each.get("message") or each.get("delta") or {}
        choice.text += each.get("text") or message.get("content") or ""
        choice.ids += each.get("token_ids") or ()
        if each.get("finish_reason"):
            choice.reasons.append(each["finish_reason"])
        self.stamps.append(time.perf_counter())

    @property
    def tokens(self) -> int:
        """Token ids of all choices."""
        return sum(len(choice.ids) for choice in self.choices.values())

    def breach(self, count: int) -> str:
        """How this is not one end of an answer with `count` choices: empty when it is.

        One end is: one `[DONE]` and nothing after it, and either one typed error, or one finish reason for each choice,
        one usage and one id throughout.
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
        return "" if len(self.answers) == 1 else f"ids {sorted(self.answers)}"

    def same(self, other: "Heard") -> bool:
        """The same tokens, characters, finish reasons and counts."""
        return (self.choices, self.usages) == (other.choices, other.usages)

    def begins(self, other: "Heard") -> bool:
        """Each choice is what the other one's begins with."""
        return all(
            index in other.choices
            and other.choices[index].text.startswith(choice.text)
            and other.choices[index].ids[: len(choice.ids)] == choice.ids
            for index, choice in self.choices.items()
        )

    def gap(self, since: float = 0.0) -> float:
        """Seconds between two chunks, the longest with its end after `since`; 0 where there are none."""
        pairs = itertools.pairwise(self.stamps)
        return max((after - before for before, after in pairs if after > since), default=0.0)


def _parse(data: bytes) -> Mapping[str, Any]:
    """What is no JSON object is an error of the server's: code `no_json`."""
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError:
        value = None
    if isinstance(value, dict):
        return value
    return {"error": {"code": "no_json", "message": data[:MAX_PROBLEM].decode("utf-8", "replace")}}
