"""Fixtures of the world around the bot: one Synapse a test session, people in it, each loaded only where a test asks for it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from hayate_matrix.demo.homeserver import Homeserver
from tests.support.bot import Bot
from tests.support.missing import count_left_out, leave_out
from tests.support.person import HAS_OLM, WHY_NO_OLM, Person
from tests.support.person import person as make_person

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path
    from typing import Any

    MakeBot = Callable[..., Awaitable[Bot]]
    MakePerson = Callable[..., Awaitable[Person]]


@pytest.fixture(scope="session")
def homeserver(request: pytest.FixtureRequest) -> Iterator[Homeserver]:
    """A real Synapse with high rate limits, shared by the session: tests keep to people and rooms of their own."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            print(line, flush=True)

    with Homeserver.start(say=say) as running:
        yield running


@pytest_asyncio.fixture
async def person(homeserver: Homeserver) -> AsyncIterator[MakePerson]:
    """Makes people, each closed when the test ends."""
    if not HAS_OLM:
        leave_out(WHY_NO_OLM)
    async with contextlib.AsyncExitStack() as stack:

        async def make(name: str, *, url: str | None = None) -> Person:
            return await stack.enter_async_context(await make_person(homeserver, name, url=url))

        yield make


@pytest_asyncio.fixture
async def make_bot(homeserver: Homeserver, tmp_path: Path) -> AsyncIterator[MakeBot]:
    """Makes real bots, logged in and not yet started; each is killed when the test ends."""
    made: list[Bot] = []

    async def make(**more: Any) -> Bot:
        bot = await Bot.make(homeserver, tmp_path, **more)
        made.append(bot)
        return bot

    yield make
    for bot in made:
        await bot.kill()


def pytest_configure(config: pytest.Config) -> None:
    """Let mautrix read the fields that senders still write."""
    config.addinivalue_line("filterwarnings", "ignore:The (sender_key|device_id) field in Megolm events:DeprecationWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long tests, in random order among themselves: one that comes last would leave the other worker idle."""
    usual_s = float(config.getini("timeout") or 0)

    def is_short(item: pytest.Item) -> bool:
        own = item.get_closest_marker("timeout")
        return own is None or float(own.args[0]) <= usual_s

    items.sort(key=is_short)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was left out for want of something."""
    for why, count in count_left_out(terminalreporter.stats.get("skipped", [])).items():
        terminalreporter.write_line(f"{count} {'test was' if count == 1 else 'tests were'} NOT run. {why}", yellow=True, bold=True)
