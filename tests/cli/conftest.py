"""A command line in this process, and a homeserver beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.cli.main import main
from tests.support.fabricated import FabricatedHomeserver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Call = Callable[..., Outcome]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that the commands find by themselves; it is not made yet."""
    path = tmp_path / "home"
    monkeypatch.setenv("HAYATE_HOME", str(path))
    return path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], home: Path) -> Call:
    """Run a command line in this process: `call("config", "check").code`."""

    def run(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        read = capsys.readouterr()
        return Outcome(int(caught.value.code or 0), read.out, read.err)

    return run


@pytest.fixture
def server() -> Iterator[FabricatedHomeserver]:
    """A fabricated homeserver in a loop of its own, since the commands have one too."""
    started, over = threading.Event(), asyncio.Event()
    made: list[tuple[FabricatedHomeserver, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        async with FabricatedHomeserver() as running:
            made.append((running, asyncio.get_running_loop()))
            started.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    running, loop = made[0]
    yield running
    loop.call_soon_threadsafe(over.set)
    thread.join(10)
