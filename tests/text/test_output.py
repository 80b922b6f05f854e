"""One request's text: streaming and stop strings together."""

from hypothesis import given
from hypothesis import strategies as st

from jitney.sampling_params import SamplingParams
from jitney.text.output import TextStream
from jitney.text.tokenizer import Tokenizer

TEXT = "Hello, wörld! 日本語のテキスト。\n\nUser: 42 👩‍👧 END of it"
STOPS = st.lists(st.sampled_from(["\n\nUser:", "END", "日本", "語の", "o", "👧 E", "zzz", "!"]), max_size=3)


def run(stream: TextStream, ids: list[int], sizes: list[int]) -> int:
    """Push `ids` in pieces, and finish; returns the tokens used."""
    used, start = 0, 0
    for size in [*sizes, len(ids)]:
        delta = stream.push(ids[start : start + size])
        used, start = used + delta.num_tokens_used, start + size
    stream.finish()
    return used


@given(
    stops=STOPS, sizes=st.lists(st.integers(0, 7), max_size=12), include=st.booleans(), min_tokens=st.integers(0, 30)
)
def test_the_result_does_not_depend_on_how_tokens_are_batched(
    smollm2: Tokenizer, stops: list[str], sizes: list[int], include: bool, min_tokens: int
) -> None:
    params = SamplingParams(stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens)
    ids = smollm2.encode(TEXT)
    batched, single = TextStream.for_request(smollm2, params), TextStream.for_request(smollm2, params)
    used = run(batched, ids, sizes)
    assert used == run(single, ids, [1] * len(ids))
    assert (batched.text, batched.matched_stop) == (single.text, single.matched_stop)


@given(stops=STOPS, include=st.booleans(), min_tokens=st.integers(0, 30))
def test_exactly_the_tokens_up_to_the_match_are_used(
    smollm2: Tokenizer, stops: list[str], include: bool, min_tokens: int
) -> None:
    params = SamplingParams(stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens)
    ids = smollm2.encode(TEXT)
    stream = TextStream.for_request(smollm2, params)
    used = run(stream, ids, [])
    # The first number of tokens, beyond min_tokens, whose text holds a stop that the first min_tokens did not complete.
    early = len(smollm2.decode(ids[:min_tokens]).removesuffix("\ufffd"))
    for count in range(min_tokens + 1, len(ids) + 1):
        text = smollm2.decode(ids[:count])
        if any(text.find(stop, max(0, early - len(stop) + 1)) >= 0 for stop in stops):
            assert used == count
            assert stream.matched_stop in stops
            return
    assert (used, stream.matched_stop, stream.text) == (len(ids), None, TEXT)


def test_deltas_add_up_to_the_text(smollm2: Tokenizer) -> None:
    stream = TextStream.for_request(smollm2, SamplingParams(stop=["END"]))
    deltas = [stream.push([token]).text for token in smollm2.encode(TEXT)]
    deltas.append(stream.finish().text)
    assert "".join(deltas) == stream.text == TEXT[: TEXT.index("END")]


def test_a_match_in_the_middle_of_a_batch_reports_the_tokens_it_needed(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("one two three four five")
    stream = TextStream.for_request(smollm2, SamplingParams(stop="three"))
    delta = stream.push(ids)
    assert (delta.text, delta.matched_stop, delta.num_tokens_used) == ("one two ", "three", 3)
    assert stream.push(ids).num_tokens_used == 0, "tokens after the end are ignored"
    assert stream.finish().text == ""


def test_stop_strings_do_not_count_in_the_text_of_the_first_min_tokens_tokens(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("one two three two three two")
    texts = {}
    for min_tokens in (1, 2, 3, 4, 6):
        stream = TextStream.for_request(smollm2, SamplingParams(stop="two", min_tokens=min_tokens, max_tokens=9))
        run(stream, ids, [2])
        texts[min_tokens] = stream.text
    assert texts == {
        1: "one ",
        2: "one two three ",
        3: "one two three ",
        4: "one two three two three ",
        6: "one two three two three two",
    }


def test_text_held_back_for_a_stop_string_that_never_comes_is_in_finish(smollm2: Tokenizer) -> None:
    stream = TextStream.for_request(smollm2, SamplingParams(stop="three!"))
    assert stream.push(smollm2.encode("one two three")).text == "one two "
    assert stream.finish().text == "three"
    assert stream.finish().text == ""
    assert stream.text == "one two three"


def test_a_half_character_at_the_end_becomes_the_replacement_character(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("東京")[:-1]
    stream = TextStream.for_request(smollm2, SamplingParams(stop="x"))
    assert stream.push(ids).text == "東"
    assert stream.finish().text == "\ufffd"


def test_a_newline_that_is_a_byte_token_stops_at_once(spm: Tokenizer) -> None:
    ids = spm.encode("the cat\nthe", add_special_tokens=False)
    newline = [spm.backend.id_to_token(token) for token in ids].index("<0x0A>")
    stream = TextStream.for_request(spm, SamplingParams(stop="\n"))
    delta = stream.push(ids)
    assert (delta.text, delta.num_tokens_used) == ("the cat", newline + 1)


def test_special_tokens_are_in_the_text_only_if_asked_for(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("<|im_start|>hi<|im_end|>")
    for skip, expected in ((True, "hi"), (False, "<|im_start|>hi<|im_end|>")):
        stream = TextStream.for_request(smollm2, SamplingParams(skip_special_tokens=skip))
        stream.push(ids)
        stream.finish()
        assert stream.text == expected
