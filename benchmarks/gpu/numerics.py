"""Is it right: a small model through the whole engine, and every kernel, against references.

The part fails if a single check is wrong; kernels that are not there are listed as absent, not as wrong.
"""

import torch

from gpu.checks import ABSENT, LEFT_OUT, OK, WRONG, Checks
from gpu.kernel_checks import check_attention
from gpu.model_checks import check_model
from gpu.op_checks import check_ops
from gpu.running import Part
from gpu.served import Bench

OPS_SHARE = 0.15
"""Share of the part's time kept for the small ops."""


def measure(bench: Bench, part: Part) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    kept_s = OPS_SHARE * part.left_s
    device = torch.device(bench.device)
    checks = Checks(part)
    check_model(checks, bench.scale, bench.device)
    check_attention(checks, bench.scale, device, kept_s)
    check_ops(checks, device, 0.0)
    counts = checks.counts
    part.total(**{"ok": counts[OK], "wrong": counts[WRONG], "absent": counts[ABSENT], "left out": counts[LEFT_OUT]})
    if counts[WRONG]:
        part.failure = f"{counts[WRONG]} of {counts[OK] + counts[WRONG]} checks are wrong; see its rows"
