"""`python -m hayate_matrix.demo [--once]`: plays the scene; `--once` ends after it."""

from __future__ import annotations

import asyncio
import contextlib
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
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(play(once=bool(arguments)))
    except (HomeserverError, HayateError) as error:
        print(f"The demo could not go on: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
