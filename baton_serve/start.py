"""Starts the Python processes of Baton, with its own packages first on `sys.path`.

The packages have generic names, such as `protocol` and `workers`. In an installation they are in the private folder
`_packages` beside this file, in a source checkout beside this folder. Modules on PYTHONPATH, in the current folder or
in another distribution cannot take their place, nor that of the standard library.

`python -P start.py MODULE ARGUMENTS...` runs a module as `python -m` does.
"""

import os  # these two are loaded already; any other could be found on PYTHONPATH
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PRIVATE = os.path.join(_HERE, "_packages")
ROOT = _PRIVATE if os.path.isdir(_PRIVATE) else os.path.dirname(_HERE)
"""The folder that has our packages."""


def module_command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The argv of a process that runs one of our modules, such as `workers`."""
    return [python, "-P", os.path.join(_HERE, "start.py"), module, *arguments]


def search_path(path: list[str], library: str) -> list[str]:
    """`path` in our order: our packages, the standard library (`library` is its folder), what is installed, and last
    what Python puts before all of them: the script's folder or the current one, and the entries of PYTHONPATH."""
    start = path.index(library) if library in path else 0
    return [ROOT, *(entry for entry in (*path[start:], *path[:start]) if entry != ROOT)]


def run(module: str) -> None:
    """Run a module of ours as `__main__`, with the arguments in `sys.argv[1:]`."""
    sys.path[:] = search_path(sys.path, os.path.dirname(os.__file__))
    # multiprocessing starts a Python that would otherwise look for the standard library in the current folder first.
    os.environ["PYTHONSAFEPATH"] = "1"
    import runpy  # not before: it imports a dozen modules of the standard library

    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Entry point of the console script `baton`."""
    run("cli")


if __name__ == "__main__":
    del sys.argv[0]
    run(sys.argv[0])
