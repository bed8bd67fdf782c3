"""Runs a command and says every few seconds that it still runs, where the command itself is silent.

Used by the Makefile before anything is installed, so it needs nothing but Python: `python3 deploy/loud.py "what it does" COMMAND ...`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

SILENCE_S = 2.5  # nothing is silent for over five seconds (NEW-4), and two commands follow each other within them


def main(what: str, command: list[str]) -> int:
    """Run `command`, pass its output on, and return its exit code."""
    started = heard = time.monotonic()
    last = b"\n"
    over = threading.Event()

    def remind() -> None:
        nonlocal heard
        while not over.wait(0.5):
            now = time.monotonic()
            if now - heard >= SILENCE_S:
                heard = now
                gap = "" if last.endswith(b"\n") else "\n"
                sys.stdout.write(f"{gap}... still {what} ({now - started:.0f} s)\n")
                sys.stdout.flush()

    sys.stdout.write(f"== {what}\n")
    sys.stdout.flush()
    threading.Thread(target=remind, daemon=True).start()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        output = process.stdout
        try:
            while output is not None and (chunk := output.read1(4096)):  # type: ignore[attr-defined]  # a pipe is a BufferedReader
                heard = time.monotonic()
                last = chunk
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
        except KeyboardInterrupt:
            process.wait()  # it got the Ctrl-C too
    over.set()
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
