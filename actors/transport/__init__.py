"""Links between processes over ZeroMQ: framing, bounds, authentication. The only import of zmq."""
