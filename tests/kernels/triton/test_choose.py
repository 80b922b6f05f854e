import sys

import pytest
import torch

from jitney.kernels.choose import choose_ops
from jitney.kernels.ops import TorchOps
from jitney.kernels.triton.ops import TritonOps


def test_a_gpu_gets_the_fused_operations_and_a_cpu_the_reference() -> None:
    assert isinstance(choose_ops(torch.device("cuda")), TritonOps)
    assert isinstance(choose_ops(torch.device("cpu")), TorchOps)


def test_a_gpu_without_triton_gets_the_reference_and_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "jitney.kernels.triton.ops", None)
    assert isinstance(choose_ops(torch.device("cuda")), TorchOps)
    assert "Triton cannot be imported" in caplog.text
