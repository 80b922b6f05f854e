import numpy as np
import torch

from jitney.runner.penalties import TokenHistory, apply_penalties
from jitney.sampling_params import SamplingParams

PARAMS = SamplingParams(repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.2)
CPU = torch.device("cpu")


def penalised(logits: torch.Tensor, history: TokenHistory) -> torch.Tensor:
    logits = logits.clone()
    apply_penalties(logits, history, PARAMS)
    return logits


def test_a_history_built_token_by_token_equals_one_built_at_once():
    prompt = np.array([3, 3, 9], np.int32)
    output = np.random.default_rng(0).integers(0, 40, 300).astype(np.int32)
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    grown = TokenHistory(prompt, output[:0], 50, CPU)
    for length, token in enumerate(output, start=1):
        grown.append(torch.tensor([token], dtype=torch.int64))
        at_once = TokenHistory(prompt, output[:length], 50, CPU)
        assert torch.equal(penalised(logits, grown), penalised(logits, at_once))


def test_the_prompt_counts_for_repetition_only_and_once():
    logits = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5])
    history = TokenHistory(np.array([0, 0, 1, 99], np.int32), np.array([2, 2, 3], np.int32), 5, CPU)
    expected = [1 / 1.3, -1.3, 2 / 1.3 - 0.4 - 0.7, -2.6 - 0.2 - 0.7, 0.5]
    torch.testing.assert_close(penalised(logits, history), torch.tensor(expected))


def test_an_empty_history_changes_nothing():
    logits = torch.randn(5, generator=torch.Generator().manual_seed(0))
    empty = np.empty(0, np.int32)
    assert torch.equal(penalised(logits, TokenHistory(empty, empty, 5, CPU)), logits)
