import pytest
import torch

from jitney.build import build_engine
from jitney.config import EngineConfig
from jitney.errors import ConfigError


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="device='cuda' needs a GPU"):
        build_engine("no/such-model", None, EngineConfig(device="cuda"))
