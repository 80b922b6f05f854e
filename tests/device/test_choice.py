import pytest
import torch

from jitney.device.choice import choose_device, made_current
from jitney.errors import ConfigError


@pytest.mark.parametrize(("available", "chosen"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_the_gpu_if_there_is_one(monkeypatch, available, chosen) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert choose_device("auto") == chosen


@pytest.mark.parametrize("name", ["cpu", "simulated"])
def test_other_devices_are_what_they_are(name) -> None:
    assert choose_device(name) == name


def test_a_torch_without_cuda_is_named_as_the_reason(monkeypatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device='cuda'.*built without CUDA.*'cpu' or 'auto'"):
        choose_device("cuda")


def test_a_missing_driver_is_reported_in_torchs_words(monkeypatch) -> None:
    def init() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(ConfigError, match=r"CUDA 13\.0 says: Found no NVIDIA driver"):
        choose_device("cuda")


def test_a_gpu_is_made_the_current_device_and_a_cpu_needs_nothing() -> None:
    with made_current(torch.device("cpu")):
        pass
    assert isinstance(made_current(torch.device("cuda", 1)), torch.cuda.device)
