"""Fixtures of several layers' tests."""

import os
import platform

# Triton's kernels run in its interpreter. It looks when it is first imported, and transformers imports it.
os.environ["TRITON_INTERPRET"] = "1"
if (platform.system(), platform.machine()) != ("Linux", "x86_64"):  # where Triton has no wheels
    collect_ignore = ["kernels/triton"]

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
