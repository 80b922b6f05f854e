"""What the demo sends: prompts of its own (prompts.txt: English, Japanese, emoji, code) and how long each answer is.

Knows no engine.
"""

from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from jitney.sampling_params import SamplingParams

SEPARATOR = "\n%%\n"
"""Between two prompts of prompts.txt."""
MEDIAN_TOKENS, SPREAD, SHORTEST, LONGEST = 36, 0.9, 8, 192
"""Answer lengths are log-normal, as real traffic's are: many short ones and a few long ones."""


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """One prompt and the exact number of tokens to generate for it."""

    prompt: str
    num_tokens: int

    @property
    def is_japanese(self) -> bool:
        return any("ぁ" <= character <= "ヿ" for character in self.prompt)

    @property
    def params(self) -> SamplingParams:
        """Greedy, and on past the model's end-of-text, so that every run does exactly the same work."""
        return SamplingParams(temperature=0.0, max_tokens=self.num_tokens, ignore_eos=True)


def demo_requests() -> list[DemoRequest]:
    """The same requests every time, in the order in which they are sent."""
    prompts = files(__package__).joinpath("prompts.txt").read_text(encoding="utf-8").rstrip("\n").split(SEPARATOR)
    lengths = np.random.default_rng(0).lognormal(np.log(MEDIAN_TOKENS), SPREAD, len(prompts))
    clipped = np.clip(lengths.astype(int), SHORTEST, LONGEST)
    return [DemoRequest(prompt, num_tokens) for prompt, num_tokens in zip(prompts, clipped.tolist(), strict=True)]
