from pathlib import Path

import pytest

from jitney.device.memory import available_memory_bytes

MIB = 2**20
MEMINFO = "MemTotal:       8192000 kB\nMemFree:         100 kB\nMemAvailable:    4096000 kB\n"


@pytest.fixture
def root(tmp_path):
    write(tmp_path, "proc/meminfo", MEMINFO)
    return tmp_path


def write(root: Path, path: str, text: object) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{text}\n")


def v2_group(root: Path, path: str, limit: object, usage: int, inactive_file: int = 0) -> None:
    write(root, f"sys/fs/cgroup/{path}/memory.max", limit)
    write(root, f"sys/fs/cgroup/{path}/memory.current", usage)
    write(root, f"sys/fs/cgroup/{path}/memory.stat", f"anon 5\ninactive_file {inactive_file}\nactive_file 9")


def test_without_limits_it_is_what_the_kernel_calls_available(root):
    assert available_memory_bytes(root) == 4096000 * 1024


def test_a_v2_limit_counts_with_droppable_page_cache_as_free(root):
    write(root, "proc/self/cgroup", "0::/")
    v2_group(root, "", 1000 * MIB, 700 * MIB, 100 * MIB)
    assert available_memory_bytes(root) == 400 * MIB


def test_the_tightest_group_above_the_process_decides(root):
    write(root, "proc/self/cgroup", "0::/pod/container")
    v2_group(root, "pod", 500 * MIB, 450 * MIB)
    v2_group(root, "pod/container", 300 * MIB, 100 * MIB)
    assert available_memory_bytes(root) == 50 * MIB


def test_no_limit_and_limits_above_the_machine_do_not_count(root):
    write(root, "proc/self/cgroup", "0::/pod/container")
    v2_group(root, "pod", 10**15, 0)
    v2_group(root, "pod/container", "max", 100 * MIB)
    assert available_memory_bytes(root) == 4096000 * 1024


def test_a_v1_limit_counts_where_the_groups_path_is_the_hosts(root):
    write(root, "proc/self/cgroup", "9:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/system.slice")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", 600 * MIB)
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", 250 * MIB)
    write(root, "sys/fs/cgroup/memory/memory.stat", f"cache 1\ntotal_inactive_file {50 * MIB}")
    assert available_memory_bytes(root) == 400 * MIB


def test_a_group_over_its_limit_leaves_nothing_rather_than_less(root):
    write(root, "proc/self/cgroup", "0::/")
    v2_group(root, "", 100 * MIB, 200 * MIB)
    assert available_memory_bytes(root) == 0


def test_where_nothing_is_known_the_physical_memory_is_taken(tmp_path):
    assert available_memory_bytes(tmp_path) > 0


def test_this_machine_has_some_memory_left():
    assert 0 < available_memory_bytes() < 2**50
