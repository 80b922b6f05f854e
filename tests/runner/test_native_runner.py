"""The native runner's short way and the common way share one state: who shares a step must not matter."""

from pathlib import Path

import pytest
from tests.models.decoder.families import from_config
from tests.models.decoder.test_native import FAMILIES
from tests.toy_llm import toy_tokenizer

from jitney import LLM, SamplingParams
from jitney.outputs import RequestOutput

PROMPTS = [[5, 6, 7], [9] * 20, [11, 12], [5, 6, 7, 8, 9, 10, 11], [200], [7, 8] * 9]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12),
    SamplingParams(temperature=1.0, seed=3, max_tokens=5),
    SamplingParams(temperature=0.0, max_tokens=12, logprobs=2),
    SamplingParams(temperature=0.0, max_tokens=4, repetition_penalty=1.5),
    SamplingParams(temperature=0.0, max_tokens=9, prompt_logprobs=1),
    SamplingParams(temperature=0.7, top_k=5, seed=4, max_tokens=12, bad_token_ids=[3, 4]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    from_config(FAMILIES["llama"]()).save_pretrained(path)
    return path


def run(folder: Path, **settings: object) -> list[RequestOutput]:
    with LLM(folder, tokenizer=toy_tokenizer(), cpu_kernels="native", cpu_threads=2, **settings) as llm:
        prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
        return llm.generate(prompts, PARAMS, use_tqdm=False)


def seen(outputs: list[RequestOutput]) -> list[object]:
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs, output.prompt_logprobs) for output in outputs]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 6},
        {"max_num_seqs": 3, "prefill_chunk_size": 2},
        {"max_num_seqs": 6, "max_steps_in_flight": 3},
        {"max_num_seqs": 4, "num_kv_blocks": 4, "max_model_len": 64, "swap_space": 0.001},
        {"max_num_seqs": 2, "batching_policy": "static"},
    ],
    ids=str,
)
def test_greedy_rows_and_all_others_in_one_batch_get_what_each_gets_alone(folder: Path, settings: dict) -> None:
    alone = run(folder, max_num_seqs=1, async_scheduling=False, enable_prefix_caching=False)
    assert all(output.error is None for output in alone)
    assert seen(run(folder, dtype="float32", **settings)) == seen(alone)


def test_greedy_tokens_are_those_of_the_torch_reference(folder: Path) -> None:
    native = run(folder, max_num_seqs=6)
    with LLM(folder, tokenizer=toy_tokenizer(), cpu_kernels="torch", max_num_seqs=6) as llm:
        reference = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], PARAMS, use_tqdm=False)
    for ours, theirs, params in zip(native, reference, PARAMS, strict=True):
        if params.temperature == 0.0:
            assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
