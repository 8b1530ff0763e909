"""Snapshots of recurrent states, in host memory."""
