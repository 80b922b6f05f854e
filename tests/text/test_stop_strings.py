"""Stop strings, against a definition that looks at the whole text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.text.stop_strings import StopStrings

TEXTS = st.text(alphabet="ab\n日", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n日", min_size=1, max_size=5), min_size=1, max_size=4)


def first_match(text: str, stops: list[str], counts_from: int = 0) -> tuple[str, int] | None:
    """(stop, end) of the match that is completed first after `counts_from` characters; the longest of several."""
    for end in range(counts_from + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return max(found, key=len), end
    return None


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    return [text[a:b] for a, b in pairwise(places)]


@given(TEXTS, STOPS, st.lists(st.integers(0, 30)), st.booleans())
def test_however_the_text_is_cut_it_ends_at_the_stop_string_that_is_completed_first(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    matcher, emitted, matched = StopStrings(stops, include), "", None
    for piece in cut(text, cuts):
        delta, matched = matcher.push(piece)
        emitted += delta
        if matched is not None:
            break
    emitted += matcher.finish()
    expected = first_match(text, stops)
    if expected is None:
        assert (emitted, matched) == (text, None)
    else:
        stop, end = expected
        assert (emitted, matched) == (text[: end if include else end - len(stop)], stop)


@given(TEXTS, STOPS)
def test_nothing_more_is_held_back_than_the_longest_ending_that_could_begin_a_stop_string(
    text: str, stops: list[str]
) -> None:
    matcher, emitted = StopStrings(stops), ""
    for position, character in enumerate(text):
        delta, matched = matcher.push(character)
        if matched is not None:
            return
        emitted += delta
        seen = text[: position + 1]
        lengths = [n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])]
        assert emitted == seen[: len(seen) - max(lengths)]


@given(TEXTS, TEXTS, STOPS)
def test_a_stop_string_completed_in_text_that_does_not_count_is_passed_over(
    early: str, late: str, stops: list[str]
) -> None:
    matcher = StopStrings(stops)
    emitted, matched = matcher.push(early, counts=False)
    assert matched is None
    delta, matched = matcher.push(late)
    emitted += delta + matcher.finish()
    expected = first_match(early + late, stops, counts_from=len(early))
    if expected is None:
        assert (emitted, matched) == (early + late, None)
    else:
        stop, end = expected
        assert matched == stop
        # What has been emitted cannot be taken back, even if the stop string began in it.
        assert emitted == (early + late)[: end - len(stop)]


@given(TEXTS, TEXTS, STOPS)
def test_asking_whether_text_would_match_changes_nothing(text: str, more: str, stops: list[str]) -> None:
    asked, silent = StopStrings(stops), StopStrings(stops)
    if asked.push(text)[1] is None:
        silent.push(text)
        would_match = asked.matches(more)
        result = asked.push(more)
        assert result == silent.push(more)
        assert would_match == (result[1] is not None)


def test_without_stop_strings_all_text_passes_at_once() -> None:
    matcher = StopStrings(())
    assert not matcher
    assert matcher.push("abc") == ("abc", None)
    assert matcher.finish() == ""


@pytest.mark.parametrize(
    ("include", "expected"), [(False, ["Hello ", "", "", ""]), (True, ["Hello ", "", "", "###"])], ids=str
)
def test_a_stop_string_over_several_deltas_is_neither_emitted_nor_missed(include: bool, expected: list[str]) -> None:
    matcher = StopStrings(["###"], include)
    assert [matcher.push(delta)[0] for delta in ("Hello ", "#", "#", "# tail")] == expected
