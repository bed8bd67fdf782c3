"""Durable steps and how to die at one of them: the list is read from the code, the kill is put below it.

    python -m tests.support.crashing CRASH run ...      runs `hayate-matrix run ...` and kills itself where CRASH says

A step is a literal name: of a transaction (`transaction("area.verb", ...)`) or of a request (`request("label", ...)`).
"""

from __future__ import annotations

import ast
import json
import os
import signal
import stat
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE = Path(__file__).resolve().parents[2] / "hayate_matrix"
Kind = Literal["transaction", "request"]


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One durable step."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Crash:
    """SIGKILL at the `nth` time of a step: before its commit or request, or after it and before anybody hears of it."""

    step: Step
    when: Literal["before", "after"]
    nth: int = 1
    also: Literal["", "sends are old", "answers can't be applied whole"] = ""
    """What else is out of order, for steps that are reached only then."""

    def __str__(self) -> str:
        """Return the name of the test."""
        return f"{self.step.kind} {self.step.name} {self.when}"

    def dump(self) -> str:
        """Return one argument that `load` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Crash:
        """Return what `dump` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "step": Step(**fields["step"])})


def find_steps() -> list[Step]:
    """Return every durable step of the package, read from its source; the demo's people are not the bot."""
    paths = [path for path in PACKAGE.rglob("*.py") if "demo" not in path.parts]
    calls = [node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call) and node.args]
    found: set[Step] = set()
    for call in calls:
        name = call.args[0]
        if isinstance(call.func, ast.Attribute) and isinstance(name, ast.Constant) and isinstance(name.value, str):
            if call.func.attr == "transaction":
                found.add(Step("transaction", name.value))
            elif call.func.attr == "request":
                found.add(Step("request", name.value))
    return sorted(found)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Trap:
    """Counts the times of the step, and says when it is time to die."""

    def __init__(self, crash: Crash) -> None:
        self.crash = crash
        self.count = 0
        self.is_committing = False

    def is_now(self, kind: Kind, name: str) -> bool:
        if Step(kind, name) != self.crash.step:
            return False
        self.count += 1
        return self.count == self.crash.nth

    def around_transaction(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `original`, a method that runs work and commits, with the kill before or after its commit."""

        def transact(owner: object, name: str, work: Callable[..., Any]) -> Any:
            if not self.is_now("transaction", name):
                return original(owner, name, work)

            def work_and_die(*arguments: Any) -> None:
                work(*arguments)
                _die()

            original(owner, name, work_and_die if self.crash.when == "before" else work)
            return _die()

        return transact

    def around_work(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `original`, which runs one transaction's work among others, with the kill behind it or a word to `around_commit`."""

        def run(owner: object, driver: object, call: Any) -> Any:
            dies = self.is_now("transaction", call.name)
            is_done = original(owner, driver, call)
            if dies and is_done and self.crash.when == "before":
                _die()
            self.is_committing = self.is_committing or (dies and is_done)
            return is_done

        return run

    def around_commit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `original`, which commits transactions together, with the kill behind it, before any caller hears of it."""

        def write(*arguments: Any) -> Any:
            over = original(*arguments)
            if self.is_committing:
                _die()
            return over

        return write

    def around_request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `original`, a request, with the kill before it is sent or after its answer came."""

        async def request(owner: object, label: str, *arguments: Any, **more: Any) -> Any:
            dies = self.is_now("request", label)
            if dies and self.crash.when == "before":
                _die()
            try:
                return await original(owner, label, *arguments, **more)
            finally:
                if dies:  # a refusal is an answer too
                    _die()

        return request


def arm(crash: Crash) -> None:
    """Put the kill in place, below our code's own calls: a commit's in the thread that commits."""
    from hayate_matrix.matrix import send  # noqa: PLC0415
    from hayate_matrix.matrix.client import workers  # noqa: PLC0415
    from hayate_matrix.matrix.http import Http  # noqa: PLC0415  the list of steps is read without the program
    from hayate_matrix.matrix.keystore import KeyStore  # noqa: PLC0415
    from hayate_matrix.matrix.sync.apply import Applier  # noqa: PLC0415
    from hayate_matrix.store.database import Database  # noqa: PLC0415

    workers._CHORES_S = 1.0  # the hourly and minutely work comes within the test
    if crash.also == "sends are old":
        send.TRUSTED_TXN_MS = -1
    elif crash.also:
        Applier.apply = _refuse_rooms(Applier.apply)  # type: ignore[method-assign]
    trap = _Trap(crash)
    Database._run_one = trap.around_work(Database._run_one)  # type: ignore[method-assign]
    Database._write = trap.around_commit(Database._write)  # type: ignore[method-assign]
    KeyStore._transact = trap.around_transaction(KeyStore._transact)  # type: ignore[method-assign]
    Http.request = trap.around_request(Http.request)  # type: ignore[method-assign]


def _refuse_rooms(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(owner: object, answer: Any, *arguments: Any) -> Any:
        if answer.joined:
            message = "the test says so"
            raise RuntimeError(message)
        return original(owner, answer, *arguments)

    return apply


def end_with_parent() -> None:
    """Die when the pipe from the test closes: a test that is killed leaves no bot behind."""

    def wait() -> None:
        while os.read(0, 1):  # not through sys.stdin, whose lock would be held at the interpreter's end
            pass
        _die()

    if sys.stdin is not None and stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    arm(Crash.load(sys.argv[1]))
    from hayate_matrix.cli.main import main

    main(sys.argv[2:])
