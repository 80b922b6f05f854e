"""The small operations' kernels compile for the real chip, which the interpreter cannot tell."""

import os
import subprocess
import sys
from pathlib import Path

import jitney


def test_the_small_operations_compile_for_hopper_in_every_dtype(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(jitney.__file__).parent.parent),
    }
    program = Path(__file__).with_name("compile_ops.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 28
