"""`python -m hayate_matrix.demo [--once]`: plays the scene; `--once` ends after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from hayate_matrix.demo.homeserver import HomeserverError
from hayate_matrix.demo.scene import play
from hayate_matrix.errors import HayateError


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    if arguments not in ([], ["--once"]):
        print("usage: python -m hayate_matrix.demo [--once]", file=sys.stderr)
        return 2
    try:
        with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
            asyncio.run(play(once=bool(arguments)))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to be written has nowhere to go
        return 1
    except (HomeserverError, HayateError) as error:
        print(f"The demo could not go on: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
