"""Emulated networks between a gateway and its remote workers: packets with delay, loss and reordering, or bytes."""
