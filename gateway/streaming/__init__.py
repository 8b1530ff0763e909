"""Streamed replies: events in order, replay buffers, and streams that outlive a connection."""
