"""`python -m hayate_matrix.demo [--once | --homeserver]`: plays the scene; `--once` ends after it, `--homeserver` plays none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from hayate_matrix.demo.homeserver import HomeserverError
from hayate_matrix.demo.scene import lend_homeserver, play
from hayate_matrix.errors import HayateError


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    if arguments not in ([], ["--once"], ["--homeserver"]):
        print("usage: python -m hayate_matrix.demo [--once | --homeserver]", file=sys.stderr)
        return 2
    try:
        with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
            asyncio.run(lend_homeserver() if arguments == ["--homeserver"] else play(once=bool(arguments)))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to be written has nowhere to go
        return 1
    except (HomeserverError, HayateError) as error:
        print(f"The demo could not go on: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
