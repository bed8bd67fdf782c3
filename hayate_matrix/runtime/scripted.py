"""A runtime without a model: short rules, the same answer every time. It serves the demo and the tests.

The request is read line by line; each line is an instruction, and what is no instruction is answered in general.

    echo TEXT           answers TEXT exactly, further lines included
    slow SECONDS TEXT   waits that long on the program's clock, then answers TEXT
    tool NAME ARGS      calls the tool NAME with the text ARGS; the answer is its result, or that of an `echo` line behind it
    spend TOKENS TEXT   answers TEXT; each step reports so many tokens, at a millionth of the currency each
    fail TEXT           cannot answer: TEXT is the sentence for the room
    crash TEXT          breaks with an error that nobody foresaw
    history             answers with the number of requests in the transcript, this one included
    reference           answers with the text of the message that was replied to
    tags [#TAG ...]     answers with the tags of the request
    Check ... before    `Noted, I will check ...`, without a tag's `#` and without when
    anything else       `Noted: ` and the text, in one line of at most 200 characters

Several `tool` lines are as many steps, one call each. What a person steers in is added to the answer: ` (steered: TEXT)`.
An edited request is answered with `Edited: ` in front.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hayate_matrix.core.transcript import Note, Request, Result, Said, Steer, ToolCall, Usage
from hayate_matrix.errors import TurnFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.transcript import Element
    from hayate_matrix.runtime.contract import Prompt

_SHOWN_CHARACTERS = 200
_TAG = re.compile(r"(?<!\S)#(?=[A-Za-z])")
_WHEN = re.compile(r"\s+(?:before|by|until|after|on|at|today|tomorrow|tonight|now|please)\b.*$", re.IGNORECASE | re.DOTALL)
_SPEND = re.compile(r"^spend (\d{1,9})\b", re.MULTILINE)
_CHECK = re.compile(r"check\s+(?=\S)", re.IGNORECASE)


class ScriptedRuntime:
    """Answers by rule; needs no model, no network and no key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def prompt(self, prompt: Prompt) -> Said:
        """Return the next step that the request's lines ask for."""
        start = max((place for place, element in enumerate(prompt.transcript) if isinstance(element, Request)), default=None)
        if start is None:
            return Said(text="There is nothing to answer: the message was removed.")
        request = prompt.transcript[start]
        assert isinstance(request, Request)  # noqa: S101 - found as one just now
        turn = prompt.transcript[start + 1 :]
        results = [element for element in turn if isinstance(element, Result)]
        calls = _find_calls(request.text)
        if len(results) < len(calls):
            name, arguments = calls[len(results)]
            call = ToolCall(id=f"{prompt.task_id}-{len(results)}", name=name, arguments=arguments)
            return Said(text="", calls=(call,), usage=_read_usage(request.text))
        answer = await self._answer(request, prompt, results)
        steered = "".join(f" (steered: {element.text})" for element in turn if isinstance(element, Steer))
        return Said(text=f"{'Edited: ' if request.is_edit else ''}{answer}{steered}", usage=_read_usage(request.text))

    async def compact(self, transcript: Sequence[Element]) -> tuple[Element, ...]:
        """Return a note of what was asked and the last exchange."""
        start = max((place for place, element in enumerate(transcript) if isinstance(element, Request)), default=0)
        return (Note(text=await self.summarise(transcript[:start])), *transcript[start:])

    async def summarise(self, transcript: Sequence[Element]) -> str:
        """Return what was asked, a line each."""
        asked = [f"- {_fold(element.text)}" for element in transcript if isinstance(element, Request)]
        return "\n".join(["Asked so far:", *asked])

    async def seed(self, summary: str, kept: Sequence[Element]) -> tuple[Element, ...]:
        """Return the summary as a note, and what was kept."""
        return (Note(text=summary), *kept)

    async def _answer(self, request: Request, prompt: Prompt, results: Sequence[Result]) -> str:  # noqa: PLR0911 - one for each rule
        lines = [line for line in request.text.split("\n") if not line.startswith("tool ")]
        text = "\n".join(lines).strip()
        word, _, rest = text.partition(" ")
        match word.lower():
            case "" if results:
                return results[-1].text
            case "echo":
                return rest
            case "slow":
                seconds, _, words = rest.partition(" ")
                await self._clock.sleep(_read_seconds(seconds))
                return words or f"That took {seconds} seconds."
            case "spend" if rest:
                return rest.partition(" ")[2]
            case "fail":
                raise TurnFailed(rest or "I can't answer that.")
            case "crash":
                raise RuntimeError(rest or "the script says so")
            case "check" if rest:
                return _note(text)
            case "history" | "reference" | "tags" if all(part.startswith("#") for part in rest.split()):
                return _show(word.lower(), request, prompt)
        if not text and request.file_name:
            return f"Noted: the file {_fold(request.file_name)}."
        return f"Noted: {_fold(text)}"


def _read_usage(text: str) -> Usage | None:
    found = _SPEND.search(text)
    return Usage(tokens=int(found[1]), cost_micros=int(found[1])) if found is not None else None


def _find_calls(text: str) -> list[tuple[str, str]]:
    calls = []
    for line in text.split("\n"):
        if line.startswith("tool ") and line[5:].strip():
            name, _, arguments = line[5:].strip().partition(" ")
            calls.append((name, arguments.strip()))
    return calls


def _show(what: str, request: Request, prompt: Prompt) -> str:
    """Return something of what the model is handed."""
    if what == "history":
        return str(sum(isinstance(element, Request) for element in prompt.transcript))
    if what == "tags":
        return " ".join(prompt.tags) or "There are no tags."
    return request.reference or "There is no reference."


def _note(text: str) -> str:
    matter = _WHEN.sub("", _CHECK.sub("", _TAG.sub("", _fold(text)), count=1)).rstrip(" .!?")
    return f"Noted, I will check {matter}."


def _fold(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= _SHOWN_CHARACTERS else f"{folded[: _SHOWN_CHARACTERS - 1]}…"


def _read_seconds(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 3600.0)
    except ValueError as error:
        raise TurnFailed(f"`slow` wants a number of seconds, for example: slow 2 done. This is none: {_fold(text)}") from error
