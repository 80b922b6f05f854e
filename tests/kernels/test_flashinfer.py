"""The plans and runs handed to FlashInfer, checked by an emulation of its documented meaning."""

import pytest
import torch

from jitney.kernels.flashinfer import FlashInferAttention

from .paged_case import SCALE, Case, dense, make_case


class EmulatedWrapper:
    """flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD"), by its documentation.

    Row i's queries are qo_indptr[i] ... qo_indptr[i + 1]; its pages are paged_kv_indices[paged_kv_indptr[i] ...
    paged_kv_indptr[i + 1]], the last of which holds paged_kv_last_page_len[i] tokens. Causal masks are aligned with the
    end; window_left keys before its own are seen, -1 for all; a soft cap of None or 0 is none.
    """

    def __init__(self) -> None:
        self.plans = 0

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float | None,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        disable_split_kv: bool,
    ) -> None:
        assert causal and disable_split_kv
        assert {t.dtype for t in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)} == {
            torch.int32
        }
        self.plans += 1
        self.rows = (qo_indptr.tolist(), paged_kv_indptr.tolist(), paged_kv_last_page_len.tolist())
        self.indices = paged_kv_indices
        self.shape = (num_qo_heads, num_kv_heads, head_dim_qk, page_size, q_data_type, kv_data_type)
        self.scale, self.window_left, self.soft_cap = sm_scale, window_left, logits_soft_cap

    def run(self, query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        _, page_size, num_kv_heads, head_dim = cache[0].shape
        assert self.shape == (query.shape[1], num_kv_heads, head_dim, page_size, query.dtype, cache[0].dtype)
        queries, pages, last_lens = self.rows
        output = torch.empty_like(query)
        for row, last_len in enumerate(last_lens):
            mine = self.indices[pages[row] : pages[row + 1]].long()
            assert 1 <= last_len <= page_size
            length = (len(mine) - 1) * page_size + last_len
            key, value = (
                pool[mine].flatten(0, 1)[:length].double().repeat_interleave(query.shape[1] // num_kv_heads, 1)
                for pool in cache
            )
            part = slice(queries[row], queries[row + 1])
            scores = torch.einsum("qhd,khd->hqk", query[part].double(), key) * self.scale
            if self.soft_cap:
                scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
            new = part.stop - part.start
            distance = torch.arange(length - new, length)[:, None] - torch.arange(length)
            hidden = (distance < 0) | ((distance > self.window_left) if self.window_left >= 0 else False)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            output[part] = torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)
        return output


def run(case: Case, backend: FlashInferAttention, **options: object) -> torch.Tensor:
    case.write()
    step = backend.begin(case.batch, case.key_cache.shape[1])
    return step.attend(case.query, case.key_cache, case.value_cache, SCALE, **options)  # type: ignore[arg-type]


ROWS = [(300, 1), (0, 21), (45, 19), (15, 1), (0, 16)]


@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("window", [None, 1, 17, 301])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_equals_dense_attention(block_size: int, window: int | None, softcap: float | None) -> None:
    case = make_case(ROWS, block_size)
    got = run(case, FlashInferAttention(EmulatedWrapper), sliding_window=window, softcap=softcap)
    torch.testing.assert_close(got, dense(case, window, softcap), rtol=1e-4, atol=1e-5)


def test_layers_alike_share_one_plan_per_step_and_others_have_their_own() -> None:
    made: list[EmulatedWrapper] = []

    def make() -> EmulatedWrapper:
        made.append(EmulatedWrapper())
        return made[-1]

    backend = FlashInferAttention(make)
    for rows in ([(5, 1)], [(30, 2), (0, 4)]):
        case = make_case(rows, 16)
        case.write()
        step = backend.begin(case.batch, 16)
        for window in (None, 4, None, 4):
            got = step.attend(case.query, case.key_cache, case.value_cache, SCALE, sliding_window=window)
            torch.testing.assert_close(got, dense(case, window), rtol=1e-4, atol=1e-5)
    assert [wrapper.plans for wrapper in made] == [2, 2]


def test_sinks_are_refused() -> None:
    with pytest.raises(ValueError, match="sinks"):
        run(make_case(ROWS, 16), FlashInferAttention(EmulatedWrapper), sinks=torch.zeros(4))
