"""Python's garbage collector in the process of a gateway."""

import gc

THRESHOLDS = (1_000, 10, 200)
"""New objects after which the young ones are collected, and how many of these collections bring one of the next
generation. So at most 10,000 objects are looked through, except that all are after two million new ones."""


def collect_rarely() -> None:
    """Keep garbage collections from holding the event loop. What was imported lives as long as the process, and a full
    collection would look through it for 40 ms; with 10,000 connections it takes 0.5 s, and by default would come at
    each quarter that they grow."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
