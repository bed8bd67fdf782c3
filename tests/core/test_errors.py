"""The tree of errors: its codes and exit codes are promises to programs."""

from __future__ import annotations

import inspect

import pytest

from hayate_matrix import errors
from hayate_matrix.errors import HayateError, MatrixError, StopError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HayateError)]


def test_each_kind_of_error_has_a_code_of_its_own() -> None:
    """A program tells errors apart by their code."""
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes)


def test_the_drawn_tree_names_every_kind() -> None:
    """Whoever opens errors.py sees all of them, with the exit codes of those that stop."""
    drawing = errors.__doc__ or ""
    for kind in KINDS:
        line = next((line for line in drawing.splitlines() if kind.__name__ in line.split()), None)
        assert line is not None, kind
        if issubclass(kind, StopError) and kind is not StopError:
            assert line.endswith(f"exit {kind.exit_code}"), line


@pytest.mark.requirement("OUT-7")
def test_a_text_is_problem_allowed_and_remedy() -> None:
    """The operator reads one text, a program the parts."""
    error = HayateError("It is wrong.", allowed="Right things.", remedy="Do it right.")
    assert str(error) == "It is wrong. Right things. Do it right."
    assert str(MatrixError("M_FORBIDDEN", "no", status=403)) == "The homeserver answered 403 M_FORBIDDEN: no"
