"""A request to join: from a worker of another machine that is authenticated, and whose `Hello` was read."""

from dataclasses import dataclass

from actors.actor import ActorStopped, Ref
from actors.mailbox import MailboxFull
from actors.transport.link import Link, LinkClosed, LinkFull
from protocol.bounds import clip
from protocol.codec import encode
from protocol.commands import Welcome
from protocol.events import Hello

DECLINE_LINGER_S = 0.1
"""Seconds that sending a refusal may take; the event loop waits for it, in the rare case that there is one."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Its receiver owns the link: it takes the link over, or declines."""

    name: str
    """The name of its key on the allow-list."""
    address: str
    """The address that it connected from."""
    hello: Hello
    link: Link

    def hand_to(self, recipient: "Ref[JoinRequest]") -> None:
        """Post it to an actor, which owns the link then; decline if that takes no more messages."""
        try:
            recipient.tell(self)
        except (MailboxFull, ActorStopped):
            self.decline("the gateway has no room for another join request: come again")

    def decline(self, why: str) -> None:
        """Tell the worker why it may not join, unless it has gone, and close the link."""
        try:
            self.link.send_nowait([encode(Welcome(self.hello.incarnation, refusal=clip(why)))])
        except (LinkClosed, LinkFull):
            pass  # it has gone by itself
        self.link.close(DECLINE_LINGER_S)
