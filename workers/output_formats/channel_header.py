"""Headers of messages in formats with channels (harmony)."""

import re
from dataclasses import dataclass
from typing import Self

from workers.output_formats.formats.model_format import ChannelFormat


@dataclass(frozen=True, slots=True)
class ChannelHeader:
    """Kind of a message, by its header."""

    reasoning: bool
    tool: str
    """The tool that is called; empty for none."""

    @classmethod
    def read(cls, header: str, channels: ChannelFormat) -> Self:
        """Read a header: the role, the channel and the recipient, in the orders that models write them."""
        _, marker, after = header.partition(channels.channel)
        words = after.split()
        channel = words[0] if marker and words else ""
        recipient = re.search(re.escape(channels.recipient) + r"([\w.:-]+)", header)
        tool = recipient[1] if recipient else ""
        return cls(channel in channels.reasoning and not tool, tool.removeprefix(channels.prefix))

    @staticmethod
    def opened_by(prompt: str, channels: ChannelFormat) -> str | None:
        """Return the header that the end of a prompt begins; None if it ends elsewhere."""
        at = max(prompt.rfind(channels.start), prompt.rfind(channels.channel))
        return prompt[at:] if at >= 0 and channels.message not in prompt[at:] else None
