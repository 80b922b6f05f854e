import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.kv.swap_space import SwapSpace


def test_blocks_go_out_and_come_back_in_order() -> None:
    space = SwapSpace(4)
    assert space.swap_out(7, [30, 10, 20], num_tokens=11)
    assert space.num_tokens(7) == 11 and space.num_free == 1
    out, _ = space.take_copies()
    assert out[:, 0].tolist() == [30, 10, 20]
    space.swap_in(7, [5, 6])  # the first block is at hand elsewhere
    _, back = space.take_copies()
    assert back.tolist() == [[5, out[1, 1]], [6, out[2, 1]]]
    assert space.num_tokens(7) == 0 and space.num_free == 4


def test_a_request_goes_out_whole_or_not_at_all() -> None:
    space = SwapSpace(2)
    assert not space.swap_out(0, [1, 2, 3], num_tokens=9)
    assert space.num_tokens(0) == 0 and space.num_free == 2
    assert len(space.take_copies()[0]) == 0


def test_a_block_that_is_copied_in_is_not_overwritten_by_the_same_step() -> None:
    space = SwapSpace(1)
    space.swap_out(0, [1], num_tokens=4)
    space.take_copies()
    space.swap_in(0, [2])
    assert not space.swap_out(1, [3], num_tokens=4)
    space.take_copies()
    assert space.swap_out(1, [3], num_tokens=4)


def test_what_is_dropped_before_its_step_is_not_copied() -> None:
    space = SwapSpace(1)
    space.swap_out(0, [1], num_tokens=4)
    space.drop(0)
    space.drop(0)
    assert space.swap_out(1, [2], num_tokens=4)
    out, _ = space.take_copies()
    assert out[:, 0].tolist() == [2]
    space.drop(1)
    assert space.swap_out(1, [3], num_tokens=4)
    space.drop(1)
    assert len(space.take_copies()[0]) == 0


def test_what_a_lost_step_was_to_fill_is_dropped_and_nothing_else() -> None:
    space = SwapSpace(3)
    space.swap_out(0, [1, 2], num_tokens=8)
    out, _ = space.take_copies()
    space.swap_out(1, [3], num_tokens=4)
    space.drop_blocks(out[:1, 1].tolist())
    assert (space.num_tokens(0), space.num_tokens(1)) == (0, 4)


actions = st.lists(
    st.tuples(st.sampled_from(["out", "out", "in", "drop", "lose", "step"]), st.integers(0, 4), st.integers(1, 3)),
    max_size=60,
)


@given(st.integers(0, 6), actions)
@settings(max_examples=300, deadline=None)
def test_what_comes_in_is_what_went_out(num_blocks: int, history: list[tuple[str, int, int]]) -> None:
    """Play the copies on arrays. Every device block is new, so each holds what nothing else ever held."""
    space = SwapSpace(num_blocks)
    device, host = np.arange(1000), np.full(num_blocks, -1)
    kept: dict[int, list[int]] = {}
    expected: dict[int, int] = {}  # device block -> what the step has to bring in
    next_block = 0
    for action, owner, count in history:
        blocks = list(range(next_block, next_block + count))
        if action == "out" and owner not in kept:
            next_block += count
            if space.swap_out(owner, blocks, num_tokens=count):
                kept[owner] = blocks
        elif action == "in" and owner in kept:
            contents = kept.pop(owner)
            count = min(count, len(contents))
            space.swap_in(owner, blocks[:count])
            expected.update(zip(blocks[:count], contents[len(contents) - count :], strict=True))
            next_block += count
        elif action == "drop":
            space.drop(owner)
            kept.pop(owner, None)
        elif action in ("step", "lose"):
            out, back = space.take_copies()
            host[out[:, 1]] = device[out[:, 0]]
            device[back[:, 0]] = host[back[:, 1]]
            assert set(expected) == set(back[:, 0].tolist())
            assert all(device[block] == content for block, content in expected.items())
            expected.clear()
            if action == "lose":
                space.drop_blocks(out[:, 1].tolist())
                kept = {owner: blocks for owner, blocks in kept.items() if not set(blocks) & set(out[:, 0].tolist())}
        space.check()
        assert all(space.num_tokens(owner) == len(kept.get(owner, ())) for owner in range(5))
    for owner in range(5):
        space.drop(owner)
    space.take_copies()
    assert space.num_free == num_blocks
