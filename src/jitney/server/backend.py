"""What the HTTP layer needs from whatever makes tokens. `EngineClient` (the engine in a process of its own) is the
one that is served; anything of this shape will do in a test."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from jitney.config import EngineConfig
from jitney.engine.limits import EngineLimits
from jitney.outputs import RequestOutput
from jitney.sampling_params import SamplingParams
from jitney.text.prompts import Prompt
from jitney.text.tokenizer import Tokenizer


class BackendState(StrEnum):
    STARTING = "starting"
    """The model is being loaded for the first time."""
    READY = "ready"
    RECOVERING = "recovering"
    """The engine died or hung and is being replaced; unfinished requests wait and go on."""
    FAILED = "failed"
    """It died again and again without progress: every request fails at once."""
    CLOSED = "closed"


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """What one engine process has done (sums since it was first started: they never fall) and how it is now."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    """Computed in prefill rows."""
    num_generated_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    """Found in the prefix cache."""
    num_prompt_tokens_asked: int = 0
    """Of the prompts that were looked up in the prefix cache."""
    num_preemptions: int = 0
    host_s: float = 0.0
    """Seconds the host spent on planning, filling, submitting and updating."""
    device_busy_s: float = 0.0
    device_idle_s: float = 0.0
    """Seconds the device waited for the next step although there was work."""
    num_restarts: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_seats: int = 0
    num_kv_blocks: int = 0
    num_kv_blocks_used: int = 0


class Backend(Protocol):
    """Makes tokens for the HTTP layer, on its event loop."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def limits(self) -> EngineLimits:
        """Only once the state has been READY."""

    @property
    def state(self) -> BackendState: ...

    @property
    def state_detail(self) -> str:
        """One sentence on the state, for /health: why it failed, how often it was restarted."""

    def get_tokenizer(self) -> Tokenizer | None: ...

    def stats(self) -> list[EngineStats]:
        """One entry for each engine process."""

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generate for one prompt; see `AsyncLLM.generate`. Leaving the iteration early aborts the request.

        Raises (the iteration):
            RequestError: the request is at fault, or was there at two deaths of the engine in a row.
            EngineDeadError: the state is FAILED or CLOSED.
        """
