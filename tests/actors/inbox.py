"""A ref without an actor: what it is told is kept, in the order in which it came."""

from typing import Any

from actors.actor import Ref
from actors.mailbox import Dispatcher, Mailbox


class Inbox:
    """`messages` has what `ref` was told."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        mailbox = Mailbox[Any](Dispatcher(), self.messages.append)
        mailbox.open()
        self.ref: Ref[Any] = Ref("inbox", mailbox)
