"""Triton's kernels run in its interpreter: it looks when it is first imported."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
