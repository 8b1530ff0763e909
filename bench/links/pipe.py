"""A pipe of multiprocessing."""

import socket
from multiprocessing.connection import Connection

from bench.links.meter import BYE, GO, SMALL, STEP, ChildSpec, Figures, Meter
from protocol.codec import encode


def pipe_parent(trips: int, frames: int) -> Figures:
    """Raises EOFError if the child ends before."""
    meter = Meter(trips, frames)
    ours, theirs = socket.socketpair()  # what multiprocessing.Pipe() is made of
    child = ChildSpec("pipe", str(theirs.fileno()), frames)
    with child.start(pass_fds=[theirs.fileno()]), Connection(ours.detach()) as pipe:
        theirs.close()
        while (answer := meter.receive(pipe.recv_bytes())) is not None:
            if answer:
                pipe.send_bytes(answer)
        pipe.send_bytes(BYE)
    return meter.figures


def pipe_child(address: str, frames: int) -> None:
    with Connection(int(address)) as pipe:
        pipe.send_bytes(SMALL)
        while (frame := pipe.recv_bytes()) != GO:
            pipe.send_bytes(frame)
        for _ in range(frames):
            pipe.send_bytes(encode(STEP))
        pipe.recv_bytes()
