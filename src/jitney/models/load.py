"""From what a user names a model by to a model that can run: a folder, a hub id, a GGUF file, or a loaded model.

Knows where weights come from and which forms of them are refused; knows nothing of tokenizers (it says where they
are) and nothing of the embedded default model (whoever finds that hands over its GGUF path).
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from jitney.config import DType
from jitney.errors import ModelLoadError
from jitney.kernels.attention import choose_attention
from jitney.models.decoder.checkpoint import SafetensorsFolder
from jitney.models.decoder.config import DecoderConfig
from jitney.models.decoder.families import decoder_config
from jitney.models.decoder.load import KernelSettings, is_fast_in_bfloat16, load_decoder
from jitney.models.decoder.model import FusedDecoder
from jitney.models.decoder.native import NativeDecoder
from jitney.models.gguf_file import read_gguf
from jitney.models.gguf_weights import gguf_decoder, load_gguf
from jitney.models.hub import download
from jitney.models.support import SERVED_DTYPES
from jitney.models.transformers_model import TransformersModel

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_ADAPTER = "adapter_config.json"
"""Marks an adapter (PEFT), which transformers applies on top of the weights it belongs to."""
_GGUF_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and what the layers above need to know of its origin."""

    model: FusedDecoder | NativeDecoder | TransformersModel
    path: Path | None
    """Where the tokenizer is: the folder, or the GGUF file itself. None for a model loaded by the caller."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end a generation, by the model's own account."""


def load_model(
    model: str | PathLike[str] | PreTrainedModel,
    dtype: DType = "auto",
    trust_remote_code: bool = False,
    device: torch.device | str = "cpu",
    kernels: KernelSettings | None = None,
) -> LoadedModel:
    """Load a model by any of its names.

    Args:
        model: a folder with config.json and safetensors, a GGUF file or a folder with exactly one, a hub id
            ("owner/name"), or a PreTrainedModel, which is shared and never changed.
        dtype: "auto" is the checkpoint's own (a GGUF's: bfloat16); on a CPU float32 instead, unless that is bfloat16
            and native kernels have instructions for it. A loaded model keeps its own.
        trust_remote_code: run Python code that comes with the model.
        device: where the weights go; a loaded model stays where it is.
        kernels: what the choice of kernels depends on besides.

    Raises ModelLoadError, saying what to change, if the model cannot be found, read or served.
    """
    loaded = _load(model, dtype, trust_remote_code, torch.device(device), kernels or KernelSettings())
    spec, where = loaded.model.spec, loaded.model.device
    if (
        kernels is not None
        and kernels.cpu_kernels == "native"
        and where.type == "cpu"
        and not isinstance(loaded.model, NativeDecoder)
    ):
        raise ModelLoadError(
            f"cpu_kernels='native' does not serve {spec.name}: a {spec.architecture}, or a model object, runs through "
            "transformers. Use cpu_kernels='auto'."
        )
    form = str(spec.dtype).removeprefix("torch.")
    logger.info("%s: %s through %s, %s on %s", spec.name, spec.architecture, loaded.model.way, form, where)
    return loaded


def _load(
    model: str | PathLike[str] | PreTrainedModel,
    dtype: DType,
    trust_remote_code: bool,
    device: torch.device,
    kernels: KernelSettings,
) -> LoadedModel:
    if isinstance(model, PreTrainedModel):
        return _share(model, dtype, device, kernels)
    if not str(model):
        raise ModelLoadError("model='' is no file or folder here, and no hub id; leave it out for the built-in model.")
    path = Path(model)
    if path.is_file():
        return _load_gguf(path, dtype, device, kernels)
    folder = path if path.is_dir() else download(str(model), trust_remote_code)
    return _load_folder(folder, dtype, trust_remote_code, device, kernels)


def _share(model: PreTrainedModel, dtype: DType, device: torch.device, kernels: KernelSettings) -> LoadedModel:
    if dtype != "auto" and model.dtype is not _DTYPES[dtype]:
        raise ModelLoadError(
            f"dtype={dtype!r} was asked for, but the loaded model is in {str(model.dtype).removeprefix('torch.')}, and "
            "a loaded model is shared as it is. Leave dtype='auto', or convert the model yourself first."
        )
    paged = _paged(model, kernels)
    if paged.device.type != device.type:
        raise ModelLoadError(
            f"The loaded model is on {paged.device}, the engine on {device}; move it with model.to({str(device)!r})."
        )
    return LoadedModel(paged, None, _eos_token_ids(getattr(model, "generation_config", None), model.config))


def _load_gguf(path: Path, dtype: DType, device: torch.device, kernels: KernelSettings) -> LoadedModel:
    file = read_gguf(path)
    stops = [file.metadata.get(f"tokenizer.ggml.{key}") for key in _GGUF_STOP_KEYS]
    eos = tuple(dict.fromkeys(token for token in stops if isinstance(token, int)))
    fused = gguf_decoder(file)
    if fused is not None:
        chosen = _decoder_dtype(fused[0], torch.bfloat16, dtype, device, kernels)
        return LoadedModel(load_decoder(*fused, chosen, device, kernels), path, eos)
    model: Any = load_gguf(file, _torch_dtype(dtype, device) or torch.bfloat16)
    return LoadedModel(_paged(model.to(device), kernels), path, eos)


def _paged(model: Any, kernels: KernelSettings) -> TransformersModel:
    """With attention that serves whatever the model may turn out to ask for: softcaps, sinks, windows."""
    paged = TransformersModel(model)
    layers = paged.spec.layers
    paged.attention = choose_attention(
        paged.device,
        paged.spec.dtype,
        [layer.head_dim for layer in layers],
        kernels.block_size,
        has_softcap=True,
        has_sinks=True,
        has_window=any(layer.sliding_window is not None for layer in layers),
    )
    return paged


def _load_folder(
    path: Path, dtype: DType, trust_remote_code: bool, device: torch.device, kernels: KernelSettings
) -> LoadedModel:
    if not (path / "config.json").is_file():
        return _load_gguf(_only_gguf(path), dtype, device, kernels)
    raw = _check_folder(path, trust_remote_code)
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        if config.is_encoder_decoder:
            raise ModelLoadError(f"{path} is an encoder-decoder model; Jitney serves decoder-only language models.")
        runs_own_code = trust_remote_code and "auto_map" in raw
        fused = None if runs_own_code else _load_fused(path, config, dtype, device, kernels)
        if fused is not None:
            return LoadedModel(fused, path, _folder_eos_token_ids(path, config))
        model: Any = _load_transformers(path, config, _torch_dtype(dtype, device), trust_remote_code)
        model.to(device)
    except ModelLoadError:
        raise
    except Exception as error:  # files of any kind of damage, read by many parsers
        raise ModelLoadError(f"{path} cannot be loaded ({type(error).__name__}): {_brief(error)}") from error
    return LoadedModel(_paged(model, kernels), path, _eos_token_ids(model.generation_config, model.config))


def _load_fused(
    path: Path, config: PreTrainedConfig, dtype: DType, device: torch.device, kernels: KernelSettings
) -> FusedDecoder | NativeDecoder | None:
    """The folder's model as a fused decoder; None if it is not one that is known exactly."""
    known = decoder_config(config)
    as_saved = config.architectures is None or (known is not None and config.architectures == [known.architecture])
    if known is None or not as_saved or not SafetensorsFolder.is_in(path) or (path / _ADAPTER).exists():
        return None
    source = SafetensorsFolder(path, device)
    own: Any = config.dtype or source.dtype
    chosen = _decoder_dtype(known, own, dtype, device, kernels)
    if chosen not in SERVED_DTYPES:
        raise ModelLoadError(f"{path} is in {chosen}; choose a dtype of {', '.join(_DTYPES)}.")
    return load_decoder(known, source, chosen, device, kernels)


def _load_transformers(
    path: Path, config: PreTrainedConfig, dtype: torch.dtype | None, trust_remote_code: bool
) -> PreTrainedModel:
    auto: Any = AutoModelForCausalLM  # its annotations do not know output_loading_info
    model, info = auto.from_pretrained(
        path,
        config=config,
        dtype=dtype or "auto",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    if missing := sorted(info["missing_keys"]):
        raise ModelLoadError(
            f"{path} lacks {len(missing)} tensors of the model ({', '.join(missing[:3])}); fetch it again, complete."
        )
    loaded: PreTrainedModel = model
    return loaded


def _only_gguf(path: Path) -> Path:
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelLoadError(f"{path} holds {len(files)} GGUF files ({names}); name the one to load.")
    raise ModelLoadError(f"{path} holds neither a config.json nor a GGUF file, so it is no model folder.")


def _check_folder(path: Path, trust_remote_code: bool) -> dict[str, Any]:
    """The contents of config.json, if the folder's weights may be loaded. Raises ModelLoadError if not."""
    try:
        config: Any = json.loads((path / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path / 'config.json'} cannot be read ({error}); fetch the model again.") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{path / 'config.json'} holds no JSON object; fetch the model again.")
    if "auto_map" in config and not trust_remote_code and not _is_known(config):
        raise ModelLoadError(
            f"{path} brings Python code of its own ({_code_names(config['auto_map'])}), which would run with your "
            "rights. Read it, and pass trust_remote_code=True (--trust-remote-code) if you trust it."
        )
    if not any(path.glob("*.safetensors")):
        pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
        if pickles:
            raise ModelLoadError(
                f"{path} has its weights as pickle ({', '.join(pickles[:3])}); loading a pickle can run any code "
                "hidden in it, so Jitney does not. Convert it to safetensors: load it where you trust it, then "
                "model.save_pretrained(folder)."
            )
        raise ModelLoadError(
            f"{path} holds no weights in *.safetensors (pickle weights are neither fetched nor loaded); fetch the "
            "model again, or choose one that has them."
        )
    return config


def _is_known(config: dict[str, Any]) -> bool:
    """Whether transformers has the model's code itself; then the code that comes with the model is not needed."""
    architectures = config.get("architectures") or [""]
    return config.get("model_type") in CONFIG_MAPPING and all(hasattr(transformers, name) for name in architectures)


def _code_names(auto_map: object) -> str:
    if not isinstance(auto_map, dict):
        return str(auto_map)
    return ", ".join(sorted({str(target).rpartition("--")[2].split(".")[0] + ".py" for target in auto_map.values()}))


def _decoder_dtype(
    config: DecoderConfig, own: torch.dtype, dtype: DType, device: torch.device, kernels: KernelSettings
) -> torch.dtype:
    """ "auto" is the checkpoint's `own`, on a CPU only where that is bfloat16 and computed fast; else float32."""
    if dtype == "auto" and device.type == "cpu" and own is torch.bfloat16 and is_fast_in_bfloat16(config, kernels):
        return own
    return _torch_dtype(dtype, device) or own


def _torch_dtype(dtype: DType, device: torch.device) -> torch.dtype | None:
    """None: the checkpoint's own."""
    if dtype != "auto":
        return _DTYPES[dtype]
    return torch.float32 if device.type == "cpu" else None


def _folder_eos_token_ids(path: Path, config: PreTrainedConfig) -> tuple[int, ...]:
    try:
        generation = GenerationConfig.from_pretrained(path, local_files_only=True)
    except OSError:  # there is none, or it cannot be read: the model's config counts, as in transformers
        generation = None
    return _eos_token_ids(generation, config)


def _eos_token_ids(generation: GenerationConfig | None, config: PreTrainedConfig) -> tuple[int, ...]:
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = config.eos_token_id
    if ids is None:
        return ()
    return tuple(int(token) for token in ids) if isinstance(ids, Iterable) else (int(ids),)


def _brief(error: Exception) -> str:
    """The first lines of a message that may be a page long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:400] or "no message"
