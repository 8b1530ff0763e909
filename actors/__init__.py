"""Who lives: actors with bounded mailboxes, pure supervision, worker processes, and the link (the only zmq import)."""
