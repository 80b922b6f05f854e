from pathlib import Path

import pytest

from jitney.device.cores import usable_cores


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu.max": "6400000 100000"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_a_containers_quota_counts_where_it_is_less_than_the_cores(
    files: dict[str, str], limit: int | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    unlimited = usable_cores(tmp_path / "nothing")
    assert usable_cores(tmp_path) == (unlimited if limit is None else min(limit, unlimited))
