"""Fetches a model from the Hugging Face hub: its config, tokenizer and safetensors, never a pickle, never code unasked.

Knows nothing of what is in the files.
"""

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from jitney.errors import ModelLoadError

_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def download(model: str, with_code: bool) -> Path:
    """The folder of the hub model `model`, fetched unless it is in the local cache.

    Raises ModelLoadError if it does not exist, may not be read, or cannot be reached.
    """
    if not _HUB_ID.fullmatch(model):
        raise ModelLoadError(f"model={model!r} is no file or folder here, and no hub id (owner/name) either.")
    try:
        return Path(snapshot_download(model, allow_patterns=[*_WANTED, "*.py"] if with_code else _WANTED))
    except GatedRepoError as error:
        raise ModelLoadError(
            f"The hub model {model!r} is gated: accept its terms on its page and log in with `hf auth login`."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelLoadError(
            f"model={model!r} is no file or folder here and no model on the hub (or a private one: `hf auth login`)."
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        raise ModelLoadError(
            f"model={model!r} is no file or folder here, is not in the local cache, and the hub cannot be reached "
            f"({type(error).__name__}). Go online once to fetch it, or give the path of a model folder or GGUF file."
        ) from error
