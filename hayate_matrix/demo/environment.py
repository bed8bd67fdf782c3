"""Synapse's own environment: found, or made from the pinned file where there is none.

Promise: two processes that want it at once don't make it twice, and nobody waits in silence.
Not here: the process that runs in it (demo/homeserver).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

Say = Callable[[str], None]

PYTHON_VARIABLE = "HAYATE_SYNAPSE_PYTHON"
SILENCE_S = 2.5
"""Longest wait without a line; NEW-4 allows five seconds, and a busy machine takes its share of them."""


class HomeserverError(Exception):
    """The throw-away homeserver can't be made or did not start; the text says what to do."""


def tell(line: str) -> None:
    """Print `line` at once, to standard error."""
    print(line, file=sys.stderr, flush=True)


def find_python(say: Say = tell) -> Path:
    """Return the Python that has Synapse installed, after making its environment where there is none.

    Raises:
        HomeserverError: the requirement file is not there, or pip failed; the text holds the end of its output.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        if not Path(named).exists():
            message = f"{PYTHON_VARIABLE} names {named}, which does not exist. Unset it and the environment is made."
            raise HomeserverError(message)
        return Path(named)
    root, requirements = _find_requirements()
    environment = root / ".venv-synapse"
    python = environment / "bin" / "python"
    marker = environment / "made-from"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if _is_made(python, marker, wanted):
        return python
    with _alone(requirements, say):
        if not _is_made(python, marker, wanted):
            _make(python, requirements, say)
            marker.write_text(wanted)
    return python


def _is_made(python: Path, marker: Path, wanted: str) -> bool:
    return python.exists() and marker.exists() and marker.read_text() == wanted


@contextlib.contextmanager
def _alone(requirements: Path, say: Say) -> Iterator[None]:
    """Let one process at a time make the environment; the lock is on the file that says what is in it, and ends with its holder."""
    with requirements.open("rb") as file:
        said = 0.0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() - said > SILENCE_S:
                    said = time.monotonic()
                    say("Waiting for another process that makes Synapse's environment ...")
                time.sleep(0.1)
            else:
                break
        yield


def _make(python: Path, requirements: Path, say: Say) -> None:
    environment = python.parents[1]
    say(f"Making an environment for Synapse in {environment.name} (63 packages, 243 MB, once; about a minute) ...")
    _run([sys.executable, "-m", "venv", "--clear", str(environment)], "making the environment", say)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:"]
    _run([*pip, "-r", str(requirements)], "installing Synapse", say)


def _find_requirements() -> tuple[Path, Path]:
    places = [Path(__file__).resolve().parents[2], Path.cwd()]
    for root in places:
        requirements = root / "deploy" / "requirements-synapse.txt"
        if requirements.exists():
            return root, requirements
    message = (
        "deploy/requirements-synapse.txt was not found: run this from a checkout of the project, "
        f"or set {PYTHON_VARIABLE} to a Python that has matrix-synapse installed."
    )
    raise HomeserverError(message)


def _run(command: list[str], what: str, say: Say) -> None:
    """Run `command`, pass its output on, and say that it still runs where it is silent."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    last: list[str] = []
    while True:
        try:
            line = lines.get(timeout=SILENCE_S)
        except queue.Empty:
            say(f"  still {what} ({time.monotonic() - started:.0f} s) ...")
            continue
        if line is None:
            break
        last = [*last[-20:], line]
        if line.startswith(("Collecting", "Downloading", "Installing", "Successfully", "ERROR")):
            say(f"  {line[:140]}")
    if process.wait():
        message = f"{what} failed (exit code {process.returncode}). The end of its output:\n" + "\n".join(last)
        raise HomeserverError(message)
