"""Jitney: an LLM inference engine with asynchronous continuous batching.

The public names are loaded when they are first used (PEP 562), so that `import jitney.scheduler` and every other part
that needs no torch stays free of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitney.async_llm import AsyncLLM
    from jitney.config import EngineConfig
    from jitney.errors import (
        ConfigError,
        DuplicateRequestError,
        EngineDeadError,
        JitneyError,
        ModelLoadError,
        RequestError,
        StepFailedError,
    )
    from jitney.llm import LLM
    from jitney.outputs import CompletionOutput, RequestOutput
    from jitney.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "ConfigError",
    "DuplicateRequestError",
    "EngineConfig",
    "EngineDeadError",
    "JitneyError",
    "ModelLoadError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "StepFailedError",
]

_MODULES = {
    "LLM": "jitney.llm",
    "AsyncLLM": "jitney.async_llm",
    "CompletionOutput": "jitney.outputs",
    "EngineConfig": "jitney.config",
    "RequestOutput": "jitney.outputs",
    "SamplingParams": "jitney.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'jitney' has no attribute {name!r}")
    value = getattr(import_module(_MODULES.get(name, "jitney.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
