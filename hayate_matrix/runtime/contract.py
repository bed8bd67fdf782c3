"""What an agent runtime must do, in four calls, so that it can be replaced (RUN-1).

Promise: a runtime keeps nothing between two calls that matters: it is handed the transcript each time, and the harness has written
         down every step before it asks for the next. So a turn that a crash cut off goes on from its last step, in any process.
Not here: when to ask, what to store, which tools run and whether they run again (harness/turn).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hayate_matrix.core.ids import ConversationId, Focus, RoomId, TaskId
    from hayate_matrix.core.transcript import Element, Said


class Tool(Protocol):
    """Something that the model can have done."""

    name: str
    description: str
    is_idempotent: bool
    """Whether a call may be run again with the same call id after a crash; otherwise its unknown outcome is named to the model."""

    async def run(self, call_id: str, arguments: str) -> str:
        """Do it and return what the model reads.

        Contract: an exception's text is read by the model too, as a failure of the call; it holds no secret and no path.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """All that the model may know for its next step."""

    conversation_id: ConversationId
    room_id: RoomId
    focus: Focus
    task_id: TaskId
    tags: tuple[str, ...] = ()
    """Those of the current request, as information: the label on the reply is not the runtime's to write (LBL-4)."""
    transcript: tuple[Element, ...]
    """Oldest first; it ends with the request, what came of it so far, and steering."""
    tools: tuple[Tool, ...] = ()


class Runtime(Protocol):
    """One agent runtime; `scripted` is one that needs no model."""

    async def prompt(self, prompt: Prompt) -> Said:
        """Return the model's next step: with tool calls it will be asked again with their results, without it is the answer.

        Raises:
            TurnFailed: it can't answer; `problem` is one sentence that goes to the room.
        """
        ...

    async def compact(self, transcript: Sequence[Element]) -> tuple[Element, ...]:
        """Return a shorter transcript that says the same, to be used in the place of `transcript`."""
        ...

    async def summarise(self, transcript: Sequence[Element]) -> str:
        """Return what somebody must know who goes on without `transcript`."""
        ...

    async def seed(self, summary: str, kept: Sequence[Element]) -> tuple[Element, ...]:
        """Return the opening elements of a fresh session that goes on from `summary` and the elements `kept`."""
        ...
