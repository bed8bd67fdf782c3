"""While the demo stays up: a bot that ends is noticed, and what is typed at the terminal is said in the room."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from hayate_matrix.demo.homeserver import HomeserverError
from hayate_matrix.demo.process import tell

if TYPE_CHECKING:
    from hayate_matrix.core.ids import RoomId
    from hayate_matrix.demo.guest import Guest
    from hayate_matrix.demo.process import BotProcess

_PROMPT = "you: "


async def stay(process: BotProcess, guest: Guest, room: RoomId, *, bot: str, start_again: str) -> None:
    """Return never; `start_again` is the command for a bot that has ended."""
    lines = _open_terminal()
    if lines is not None:
        tell("  Or write here: it is said in Garden as hana, encrypted and with a mention of hayate. Try `!hashtags` too.")
        _prompt()
    watch = asyncio.create_task(_watch(process, start_again, is_prompted=lines is not None))
    try:
        while lines is not None and (line := await lines.get()):
            if text := line.strip():
                await _talk(guest, room, text, bot)
            _prompt()
        await asyncio.Event().wait()
    finally:
        watch.cancel()


async def _watch(process: BotProcess, start_again: str, *, is_prompted: bool) -> None:
    how = await process.ends()
    tell(("\n" if is_prompted else "") + f"The bot {how}. Started again, it goes on where it was; in another terminal, until Ctrl-C there:")
    tell(f"  {start_again}")
    if is_prompted:
        _prompt()


async def _talk(guest: Guest, room: RoomId, text: str, bot: str) -> None:
    is_command = text.startswith(("!", "/"))
    event_id = await guest.says(room, text, to=None if is_command else bot)
    try:
        answer = await guest.sees_answer(event_id)
    except HomeserverError as error:
        tell(f"  {error}")
    else:
        show(answer.body)


def show(text: str, remark: str = "") -> None:
    """Print what the bot said."""
    first, *rest = text.splitlines()
    tell(f"  hayate: {first}{remark}")
    for line in rest:
        tell(f"          {line}")


def _prompt() -> None:
    print(_PROMPT, end="", flush=True)


def _open_terminal() -> asyncio.Queue[str] | None:
    """Return the lines that are typed, an empty one at their end; None where there is no terminal, or another program has it."""
    if not sys.stdin.isatty() or not _is_in_front():
        return None
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        line = sys.stdin.readline() if _is_in_front() else ""  # who reads from behind is stopped by the terminal
        lines.put_nowait(line)
        if not line:
            loop.remove_reader(sys.stdin)

    loop.add_reader(sys.stdin, read)
    return lines


def _is_in_front() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return True  # a terminal that controls nobody
