"""Log-probabilities of given tokens under raw logits in host memory (numpy; logprobs.py is the same for tensors)."""

import numpy as np

from jitney.types import Float32, Int32, LogprobRows


def host_logprobs(logits: Float32, token_ids: Int32, num_top: int) -> LogprobRows:
    """Log-probabilities of one token in each row.

    Args:
        logits: [L, V], as the model gave them.
        token_ids: [L]
        num_top: K, how many of the most likely tokens to list (the lowest ids first among equals); more than V gives V.

    Returns:
        L rows; a token's rank is 1 + the number of tokens with a greater logit.
    """
    num_rows, vocab_size = logits.shape
    num_top = min(num_top, vocab_size)
    result = LogprobRows(
        token_ids=token_ids.astype(np.int32),
        logprobs=np.empty(num_rows, np.float32),
        ranks=np.empty(num_rows, np.int32),
        top_token_ids=np.empty((num_rows, num_top), np.int32),
        top_logprobs=np.empty((num_rows, num_top), np.float32),
    )
    for row, (values, token) in enumerate(zip(logits, token_ids, strict=True)):
        top = _top(values, num_top)
        shifted = values - values.max()
        logprobs = shifted - np.log(np.exp(shifted).sum(dtype=np.float64)).astype(np.float32)
        result.logprobs[row], result.ranks[row] = logprobs[token], 1 + np.count_nonzero(values > values[token])
        result.top_token_ids[row], result.top_logprobs[row] = top, logprobs[top]
    return result


def _top(values: Float32, count: int) -> Int32:
    """Ids of the `count` highest values, the highest first."""
    if count == 0:
        return np.empty(0, np.int32)
    border = np.partition(values, -count)[-count]
    candidates = np.flatnonzero(values >= border)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count].astype(np.int32)
