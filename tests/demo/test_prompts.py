from jitney.demo.prompts import LONGEST, SHORTEST, demo_requests


def test_the_prompts_are_a_mix_of_languages_kinds_and_lengths() -> None:
    prompts = [request.prompt for request in demo_requests()]
    assert len(prompts) == len(set(prompts)) >= 32
    assert sum(request.is_japanese for request in demo_requests()) >= 10
    assert sum("```python" in prompt or "SELECT" in prompt for prompt in prompts) >= 2
    assert any(ord(character) > 0x1F300 for prompt in prompts for character in prompt)
    assert min(map(len, prompts)) < 40 and max(map(len, prompts)) > 1000
    assert all(prompt.strip() == prompt and "%%" not in prompt for prompt in prompts)


def test_the_answers_are_of_varied_length_and_the_same_every_time() -> None:
    lengths = [request.num_tokens for request in demo_requests()]
    assert lengths == [request.num_tokens for request in demo_requests()]
    assert min(lengths) >= SHORTEST and max(lengths) <= LONGEST
    assert max(lengths) > 5 * min(lengths)


def test_every_run_does_the_same_work() -> None:
    params = demo_requests()[0].params
    assert params.is_greedy and params.ignore_eos and params.max_tokens == demo_requests()[0].num_tokens
