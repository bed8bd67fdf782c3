"""What the bench prints: ours beside the peer's, with the bar and whether it is met."""

from __future__ import annotations

import time


class Report:
    """Collects lines and prints them as they come, and all of them at the end."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._started = time.monotonic()

    def say(self, line: str) -> None:
        """Print what is being done."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {line}", flush=True)

    def compare(self, name: str, what: str, ours: float, theirs: float, unit: str, *, bar: float) -> None:
        """Report a figure beside bare nio's; the bar is a ratio."""
        self.beside(name, what, ours, theirs, unit, peer="bare nio", bar=bar)

    def beside(self, name: str, what: str, ours: float, theirs: float, unit: str, *, peer: str, bar: float, at_least: bool = False) -> None:
        """Report a figure beside that of `peer`; the bar is a ratio."""
        ratio = ours / theirs if theirs else float("inf")
        verdict = "met" if (ratio >= bar if at_least else ratio <= bar) else "NOT met"
        sign = "≥ " if at_least else ""
        self._add(f"{name}  {what}: ours {ours:,.1f} {unit}, {peer} {theirs:,.1f} {unit}, ratio {ratio:.2f} (bar {sign}{bar:g}: {verdict})")

    def alone(self, name: str, what: str, ours: float, unit: str, *, bar: float, at_least: bool = False) -> None:
        """Report a figure against a bar of its own."""
        met = ours >= bar if at_least else ours <= bar
        self._add(f"{name}  {what}: {ours:,.1f} {unit} (bar {'≥' if at_least else '≤'} {bar:g}: {'met' if met else 'NOT met'})")

    def note(self, name: str, text: str) -> None:
        """Report something without a bar."""
        self._add(f"{name}  {text}")

    def _add(self, line: str) -> None:
        self.lines.append(line)
        self.say(line)

    def finish(self) -> None:
        """Print all figures together, and what a bar that is not met means."""
        print("\n" + "\n".join(self.lines), flush=True)
        missed = sum("NOT met" in line for line in self.lines)
        if missed:
            print(
                f"{missed} of these bars {'is' if missed == 1 else 'are'} not met. That is a figure and no failure (the exit code is 0): "
                "measure again on a machine that does nothing else; what stays is a regression to look into.",
                flush=True,
            )
