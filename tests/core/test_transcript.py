"""The elements of a transcript."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayate_matrix.core.transcript import (
    Element,
    Note,
    Removed,
    Request,
    Result,
    Said,
    Steer,
    ToolCall,
    dump_element,
    find_open_calls,
    get_kind,
    load_element,
)

CALLS = tuple(ToolCall(id=str(number), name="look", arguments="{}") for number in range(3))
GIVEN = [Result(call_id=str(number), name="look", text="seen") for number in range(3)]


TEXT = st.text()
ELEMENT = st.one_of(
    st.builds(Request, sender=TEXT, text=TEXT, reference=st.none() | TEXT, is_edit=st.booleans(), file_name=st.none() | TEXT),
    st.builds(Said, text=TEXT, calls=st.lists(st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT)).map(tuple), native=TEXT),
    st.builds(Result, call_id=TEXT, name=TEXT, text=TEXT, outcome=st.sampled_from(["done", "failed", "unknown", "stopped"])),
    st.builds(Steer, sender=TEXT, text=TEXT),
    st.builds(Note, text=TEXT),
)


@given(ELEMENT)
def test_an_element_comes_back_as_it_was(element: Element) -> None:
    """Whatever is in it survives being written down."""
    assert load_element(get_kind(element), dump_element(element)) == element


@pytest.mark.requirement("IN-5")
def test_an_element_without_its_text_is_a_stone() -> None:
    """A removed text leaves an element that says what stood there."""
    for text in (None, "", "{", "[]", '{"nothing": 1}', '{"sender": "@a:b"}'):
        assert load_element("request", text) == Removed(kind="request")
    assert get_kind(Removed(kind="request")) == "request"


@pytest.mark.requirement("CORE-3")
@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([], ()),
        ([Said(text="hello")], ()),
        ([Said(text="", calls=CALLS)], CALLS),
        ([Said(text="", calls=CALLS), GIVEN[0]], CALLS[1:]),
        ([Said(text="", calls=CALLS), GIVEN[0], Steer(sender=None, text="x"), GIVEN[1], GIVEN[2]], ()),  # type: ignore[arg-type]
        ([Said(text="", calls=CALLS), *GIVEN, Said(text="", calls=CALLS[:1])], CALLS[:1]),
        ([Said(text="", calls=CALLS[:1]), GIVEN[0], Said(text="done"), Note(text="x")], ()),
    ],
)
def test_open_calls_are_those_of_the_last_step_without_a_result(elements: list[Element], expected: tuple[ToolCall, ...]) -> None:
    """In the order in which they are made; an earlier call of the same id does not count for a later step."""
    assert find_open_calls(elements) == expected
