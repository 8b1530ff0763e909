"""Actors with bounded mailboxes, supervision, worker processes, and the link (the only zmq import)."""
