"""The kernels compile for the real chip, which the interpreter cannot tell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jitney

SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory that one program may take on Hopper."""
A_FEW_REGISTERS = 64
"""Bytes of stack per thread; a tile that does not fit into registers spills hundreds."""


def test_attention_compiles_for_hopper_and_its_tiles_fit_shared_memory_and_registers(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(jitney.__file__).parent.parent),
    }
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("compile_for_hopper.py")],
        capture_output=True, text=True, env=environment, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == 12
    for result in results:
        assert result["shared"] <= SHARED_MEMORY, result
        assert result["stack"] <= A_FEW_REGISTERS, result
