"""Every way to name a model, and every form of weights that is refused with its reason."""

import json
import pickle
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.driver import generate
from tests.models.gguf_writer import write_gguf
from tests.models.tiny import tiny_model
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

from jitney.config import CpuKernels
from jitney.errors import ModelLoadError
from jitney.kernels.native.library import has_bfloat16_instructions
from jitney.models.decoder.families import decoder_config
from jitney.models.decoder.load import KernelSettings
from jitney.models.load import LoadedModel, _decoder_dtype, _load_fused, load_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def tokens(loaded: LoadedModel) -> list[list[int]]:
    return generate(loaded.model, [[5, 9, 200], [17]], 6, 16)


def expected(model: PreTrainedModel) -> list[list[int]]:
    return tokens(load_model(model))


def test_a_folder_of_safetensors_loads_in_float32_on_a_cpu(folder: Path) -> None:
    loaded = load_model(folder)
    assert (loaded.path, loaded.eos_token_ids) == (folder, (2,))
    assert loaded.model.spec.dtype is torch.float32
    assert tokens(loaded) == expected(tiny_model("llama"))


def test_a_half_precision_checkpoint_is_float32_on_a_cpu_unless_asked_otherwise(tmp_path: Path) -> None:
    tiny_model("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    assert load_model(str(tmp_path)).model.spec.dtype is torch.float32
    assert load_model(str(tmp_path), dtype="bfloat16").model.spec.dtype is torch.bfloat16


def test_generation_config_names_the_end_tokens(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert load_model(folder).eos_token_ids == (2, 7)


def test_a_gguf_file_and_a_folder_with_one_load_alike(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(tiny_model("llama"), path)
    for name in (path, tmp_path):
        loaded = load_model(name)
        assert (loaded.path, loaded.eos_token_ids) == (path, (2,))
        assert tokens(loaded) == expected(tiny_model("llama"))


def test_a_loaded_model_is_shared_where_and_as_it_is() -> None:
    model = tiny_model("qwen3").to(torch.bfloat16)
    loaded = load_model(model)
    assert loaded.path is None
    assert loaded.model.spec.dtype is torch.bfloat16
    with pytest.raises(ModelLoadError, match="dtype='float32'"):
        load_model(model, dtype="float32")


def test_a_folder_with_two_gguf_files_asks_which(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelLoadError, match=r"a\.gguf, b\.gguf"):
        load_model(tmp_path)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"neither a config\.json nor a GGUF"):
        load_model(tmp_path)


def test_pickle_weights_are_refused_without_being_opened(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return (Path.touch, (trap,))

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ModelLoadError, match=r"pickle \(pytorch_model\.bin\).*safetensors"):
        load_model(folder)
    assert not trap.exists()


CODE = """
from transformers import LlamaConfig
from pathlib import Path
Path(__file__).with_name("ran").touch()
class OddConfig(LlamaConfig):
    model_type = "odd"
"""


def test_remote_code_is_refused_by_default_and_not_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "odd", "auto_map": {"AutoConfig": "odd_code.OddConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "odd_code.py").write_text(CODE)
    with pytest.raises(ModelLoadError, match=r"odd_code\.py.*trust_remote_code=True"):
        load_model(folder)
    assert not (folder / "ran").exists()


def test_remote_code_for_an_architecture_that_transformers_has_is_not_needed(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "own.LlamaConfig"}}))
    assert tokens(load_model(folder)) == expected(tiny_model("llama"))


@pytest.mark.parametrize("size", [0, 5, 100, 10_000])
def test_truncated_safetensors_are_refused(folder: Path, size: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load_model(folder)


def test_a_checkpoint_that_lacks_a_tensor_is_refused_not_filled_with_noise(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj"):
        load_model(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"model_type": "no-such-model"}', "{}"])
def test_a_broken_config_is_refused(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=str(folder.name)):
        load_model(folder)


def test_an_encoder_decoder_folder_is_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=64, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="encoder-decoder"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["nobody/no-such-model", "no_such_file.gguf", "/no/such/folder", "a b", ""])
def test_a_name_that_leads_nowhere_is_refused(name: str) -> None:
    with pytest.raises(ModelLoadError, match="no file or folder here"):
        load_model(name)


@pytest.mark.parametrize(
    ("family", "kernels", "way"),
    [
        ("llama", "torch", "LlamaForCausalLM through the fused decoder with torch attention"),
        ("gemma3", "native", r"Gemma3ForCausalLM through native kernels \(\w+, 1 threads\)"),
        ("gpt2", "auto", "GPT2LMHeadModel through transformers with torch attention"),
    ],
)
def test_one_line_says_which_code_runs_the_model(
    family: str, kernels: CpuKernels, way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_model(family).save_pretrained(tmp_path)
    with caplog.at_level("INFO", logger="jitney"):
        load_model(tmp_path, kernels=KernelSettings(cpu_kernels=kernels, cpu_threads=1))
    (message,) = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(f"{re.escape(str(tmp_path))}: {way}, float32 on cpu", message)


def test_without_a_dtype_a_checkpoint_keeps_its_own_off_the_cpu() -> None:
    """ "auto" is the checkpoint's own on a GPU; on a CPU that of what is computed fast."""
    config = decoder_config(tiny_model("gemma3").config)
    assert config is not None
    gpu, cpu, torch_only = torch.device("cuda"), torch.device("cpu"), KernelSettings(cpu_kernels="torch")
    for own in (torch.float16, torch.bfloat16, torch.float32):
        assert _decoder_dtype(config, own, "auto", gpu, KernelSettings()) is own
        assert _decoder_dtype(config, own, "auto", cpu, torch_only) is torch.float32
        assert _decoder_dtype(config, own, "float16", cpu, KernelSettings()) is torch.float16
    native = torch.bfloat16 if has_bfloat16_instructions() else torch.float32
    assert _decoder_dtype(config, torch.bfloat16, "auto", cpu, KernelSettings()) is native
    assert _decoder_dtype(config, torch.float16, "auto", cpu, KernelSettings()) is torch.float32


def test_a_dtype_that_nobody_serves_is_refused(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    config = tiny_model("llama").config
    config.dtype = torch.float64
    with pytest.raises(ModelLoadError, match=r"float64; choose a dtype of float32, bfloat16, float16"):
        _load_fused(tmp_path, config, "auto", torch.device("cuda"), KernelSettings())  # refused before it is looked for
