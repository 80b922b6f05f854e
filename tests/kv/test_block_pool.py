from hypothesis import given
from hypothesis import strategies as st

from jitney.kv.block_pool import SCRATCH_BLOCK, BlockPool


def test_a_fresh_pool_gives_consecutive_blocks_and_never_scratch() -> None:
    pool = BlockPool(8)
    assert pool.allocate(3) == [1, 2, 3] and pool.allocate(5) == [4, 5, 6, 7, 8]
    assert pool.num_free == 0 and SCRATCH_BLOCK not in range(1, 9)


def test_cached_blocks_are_evicted_least_recently_used_first_and_only_when_no_blank_one_is_left() -> None:
    evicted: list[int] = []
    pool = BlockPool(4, on_evict=evicted.append)
    pool.allocate(3)
    pool.release([2], lambda block: True)
    pool.release([1, 3], lambda block: True)
    assert pool.allocate(1) == [4] and evicted == []
    assert pool.allocate(2) == [2, 1] and evicted == [2, 1]


def test_a_shared_block_stays_held_until_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.share(block)
    pool.release([block])
    assert pool.ref_count(block) == 1 and pool.num_free == 1
    pool.release([block])
    assert pool.ref_count(block) == 0 and pool.num_free == 2


@given(st.lists(st.tuples(st.sampled_from(["allocate", "share", "release", "drop"]), st.integers(0, 9)), max_size=60))
def test_no_sequence_of_operations_loses_or_doubles_a_block(operations: list[tuple[str, int]]) -> None:
    pool = BlockPool(10)
    held: list[int] = []
    for name, number in operations:
        match name:
            case "allocate" if number <= pool.num_free:
                held += pool.allocate(number)
            case "share" if held:
                held.append(held[number % len(held)])
                pool.share(held[-1])
            case "release" if held:
                pool.release([held.pop(number % len(held))], lambda block: block % 2 == 0)
            case "drop":
                pool.drop(number + 1)
        pool.check()
        assert pool.num_held == len(set(held))
        assert all(pool.ref_count(block) == held.count(block) for block in set(held))
