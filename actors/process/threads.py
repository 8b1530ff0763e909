"""Threads: whether some can still be started.

Without a thread libzmq cannot start a context, and aborts the process (`thread_t::start`, which asserts): under a limit
of processes (RLIMIT_NPROC, `pids.max` of a container, `TasksMax=`), which counts threads too.
"""

import threading

LINK = 4
"""That must be free for a link to be made; it takes 2. The system may count one that has ended for a moment longer."""


class NoThreads(Exception):
    """Raised when the system lets the process start too few further threads. Nothing was done."""


def check_threads(count: int) -> None:
    """Raises `NoThreads` unless so many could be started now. They run for that moment, so nothing is guessed."""
    end = threading.Event()
    tried: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=end.wait, name="try-thread", daemon=True)
            thread.start()
            tried.append(thread)
    except RuntimeError as error:
        raise NoThreads(f"fewer than {count} threads can be started: the limit of processes is reached") from error
    finally:
        end.set()
        for thread in tried:
            thread.join()
