from collections.abc import Iterator
from typing import Any

import pytest

import jitney.async_llm
from jitney.async_llm import AsyncLLM
from jitney.config import EngineConfig

from ..letter_llm import toy_async_llm


@pytest.fixture
def toy_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[AsyncLLM]]:
    """Commands get a toy engine, whatever model they name. The list holds those that were made."""
    made: list[AsyncLLM] = []

    def make(model: Any, *, config: EngineConfig) -> AsyncLLM:
        made.append(toy_async_llm(config))
        return made[-1]

    monkeypatch.setattr(jitney.async_llm, "AsyncLLM", make)
    yield made
    assert not any(llm.is_alive for llm in made), "a command left its engine running"
