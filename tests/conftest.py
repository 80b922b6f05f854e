"""Fixtures of several layers' tests."""

from collections.abc import Iterator

import pytest

from jitney.async_llm import AsyncLLM

from .toy_llm import GatedRunner, gated_engine, toy_tokenizer


@pytest.fixture
def gated() -> Iterator[tuple[AsyncLLM, GatedRunner]]:
    """An AsyncLLM whose steps wait for the test."""
    engine, runner = gated_engine()
    llm = AsyncLLM.from_engine(engine, toy_tokenizer())
    yield llm, runner
    runner.permits.release(1000)
    llm.close()
