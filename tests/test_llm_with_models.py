"""The front doors end to end: a tiny random model with a tokenizer trained here, and the embedded model's real text."""

import asyncio
import copy
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from jitney.async_llm import AsyncLLM
from jitney.errors import ConfigError, EngineDeadError, ModelLoadError, RequestError
from jitney.llm import LLM
from jitney.models.embedded import embedded_model_path
from jitney.outputs import RequestOutput
from jitney.sampling_params import SamplingParams

from .engine.toy_engine import check_idle

CORPUS = ["The bus stops at every corner.", "誰かが降りると、すぐに次の人が座ります。", "🚌💺 passengers come and go"]
PROMPTS = ["The bus", "次の人が", "passengers come and go at every corner of the town", "🚌", "a"]
GREEDY = SamplingParams(temperature=0, max_tokens=16)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    backend.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    return fast


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def shared_llm(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Iterator[LLM]:
    with LLM(model, tokenizer=tokenizer, max_num_seqs=3, block_size=4) as llm:
        yield llm


@pytest.fixture
def llm(shared_llm: LLM) -> Iterator[LLM]:
    yield shared_llm
    check_idle(shared_llm.engine)


def reference(model: LlamaForCausalLM, ids: list[int], max_tokens: int = 16) -> list[int]:
    """What transformers generates, greedily."""
    prompt = torch.tensor([ids])
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
    )
    return output[0, len(ids) :].tolist()


def test_greedy_outputs_are_those_of_transformers(llm: LLM, model: LlamaForCausalLM) -> None:
    for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False):
        assert output.error is None
        assert output.outputs[0].token_ids == reference(model, output.prompt_token_ids)


def test_the_callers_model_is_left_as_it_is(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    config, state = copy.deepcopy(model.config.to_dict()), {k: v.clone() for k, v in model.state_dict().items()}
    ids = torch.tensor([[5, 6, 7]])
    before = model(ids).logits
    with LLM(model, tokenizer=tokenizer) as llm:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert torch.equal(model(ids).logits, before), "its own forward pass, while the engine lives"
    assert model.config.to_dict() == config
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_logprobs_are_those_of_a_full_forward_pass(llm: LLM, model: LlamaForCausalLM) -> None:
    params = SamplingParams(max_tokens=6, seed=3, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (output,) = llm.generate("The bus stops", params, use_tqdm=False)
    (completion,) = output.outputs
    ids = output.prompt_token_ids + completion.token_ids
    with torch.inference_mode():
        expected = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)
    assert output.prompt_logprobs is not None and completion.logprobs is not None
    assert output.prompt_logprobs[0] is None
    positions = [*output.prompt_logprobs[1:], *completion.logprobs]
    assert len(positions) == len(ids) - 1
    for position, entries in enumerate(positions):
        assert entries is not None
        row, token = expected[position], ids[position + 1]
        assert next(iter(entries)) == token, "the token itself comes first"
        assert row.topk(len(entries) - 1 if entries[token].rank > 2 else 1).indices[0].item() in entries
        for token_id, found in entries.items():
            assert found.logprob == pytest.approx(row[token_id].item(), abs=1e-4)
            assert found.rank == int((row > row[token_id]).sum()) + 1
            assert found.decoded_token == llm.get_tokenizer().decode([token_id], skip_special_tokens=False)  # type: ignore[union-attr]
    assert all(2 <= len(entries) <= 3 for entries in completion.logprobs)
    own = [entries[token].logprob for entries, token in zip(completion.logprobs, completion.token_ids, strict=True)]
    assert completion.cumulative_logprob == pytest.approx(sum(own))


def test_seeded_sampling_does_not_depend_on_the_batch(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, seed=11, n=2, top_p=0.9)
    (alone,) = llm.generate("The bus", params, use_tqdm=False)
    *_, together = llm.generate([*PROMPTS, "The bus"], [GREEDY] * len(PROMPTS) + [params], use_tqdm=False)
    assert [each.token_ids for each in alone.outputs] == [each.token_ids for each in together.outputs]
    assert alone.outputs[0].token_ids != alone.outputs[1].token_ids


def test_chat_has_one_begin_token(llm: LLM) -> None:
    (output,) = llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)
    assert output.prompt == "<s>user: hi\n"
    assert output.prompt_token_ids.count(0) == 1


def test_a_folder_is_the_same_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, llm: LLM, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with LLM(tmp_path, max_num_seqs=2) as from_folder:
        outputs = from_folder.generate(PROMPTS, GREEDY, use_tqdm=False)
    expected = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output.outputs for output in outputs] == [output.outputs for output in expected]


def test_the_simulated_device_gives_the_same_tokens(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, llm: LLM
) -> None:
    with LLM(model, tokenizer=tokenizer, device="simulated") as simulated:
        outputs = simulated.generate(PROMPTS, GREEDY, use_tqdm=False)
    expected = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output.outputs for output in outputs] == [output.outputs for output in expected]


def test_without_a_tokenizer_a_model_takes_token_ids(model: LlamaForCausalLM) -> None:
    with LLM(model) as llm:
        output, string = llm.generate([{"prompt_token_ids": [5, 6, 7]}, "hi"], GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == reference(model, [5, 6, 7]) and output.outputs[0].text == ""
    assert isinstance(string.error, RequestError)


def test_streams_end_up_with_the_offline_text_and_never_take_text_back(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, llm: LLM
) -> None:
    params = [GREEDY, SamplingParams(max_tokens=40, seed=1), SamplingParams(max_tokens=40, seed=2, stop=["a", "。"])]
    cases = [(prompt, each) for prompt in PROMPTS for each in params]

    async def main() -> list[RequestOutput]:
        async with AsyncLLM(model, tokenizer=tokenizer, max_num_seqs=3) as online:

            async def consume(prompt: str, each: SamplingParams) -> RequestOutput:
                text = ""
                async for output in online.generate(prompt, each):
                    assert output.outputs[0].text.startswith(text)
                    text = output.outputs[0].text
                return output

            return await asyncio.gather(*[consume(*case) for case in cases])

    outputs = asyncio.run(main())
    expected = llm.generate([case[0] for case in cases], [case[1] for case in cases], use_tqdm=False)
    assert [output.outputs for output in outputs] == [output.outputs for output in expected]


def test_closing_leaves_no_thread(model: LlamaForCausalLM) -> None:
    before = set(threading.enumerate())

    async def online() -> None:
        async with AsyncLLM(model) as llm:
            async for _ in llm.generate({"prompt_token_ids": [5]}, GREEDY):
                pass

    asyncio.run(online())
    with LLM(model) as llm:
        llm.generate({"prompt_token_ids": [5]}, GREEDY, use_tqdm=False)
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) <= before
    with pytest.raises(EngineDeadError):
        llm.generate({"prompt_token_ids": [5]}, GREEDY, use_tqdm=False)


def test_settings_that_do_not_fit_the_model_are_refused(model: LlamaForCausalLM) -> None:
    with pytest.raises(ConfigError, match="256 positions"):
        LLM(model, max_model_len=257)
    with pytest.raises(ModelLoadError, match="dict"):
        LLM({"not": "a model"})  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError):
        LLM("no/such/folder")


def test_few_blocks_shorten_the_longest_request_unless_a_length_is_asked_for(model: LlamaForCausalLM) -> None:
    with LLM(model, num_kv_blocks=5, block_size=16) as llm:
        assert llm.engine.limits.max_model_len == 80
    with pytest.raises(ConfigError, match="num_kv_blocks"):
        LLM(model, num_kv_blocks=5, block_size=16, max_model_len=81)


# The embedded model


@pytest.fixture(scope="module")
def smollm() -> Iterator[LLM]:
    try:
        embedded_model_path(download=False)
    except ModelLoadError as error:
        pytest.skip(str(error))
    with LLM(max_model_len=256, max_num_seqs=4) as llm:
        yield llm
        check_idle(llm.engine)


def test_the_embedded_model_knows_the_capital_of_france(smollm: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = smollm.chat(question, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    assert "Paris" in output.outputs[0].text
    assert (
        output.outputs[0].finish_reason == "stop"
        and output.outputs[0].token_ids[-1] == smollm.engine.limits.eos_token_ids[0]
    )


def test_the_embedded_model_writes_japanese_without_broken_characters(smollm: LLM) -> None:
    question = [{"role": "user", "content": "「おはよう」を繰り返してください。"}]
    (output,) = smollm.chat(question, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    assert any("\u3040" <= character <= "\u30ff" for character in output.outputs[0].text)
    assert smollm.get_tokenizer().decode(output.outputs[0].token_ids) == output.outputs[0].text  # type: ignore[union-attr]
