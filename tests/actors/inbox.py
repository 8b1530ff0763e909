"""A ref without an actor, which keeps the messages that it gets, in order."""

from typing import Any

from actors.actor import Ref
from actors.mailbox import Dispatcher, Mailbox


class Inbox:
    """`messages` has what was posted to `ref`."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        mailbox = Mailbox[Any](Dispatcher(), self.messages.append)
        mailbox.open()
        self.ref: Ref[Any] = Ref("inbox", mailbox)
