import json
from pathlib import Path

from jitney.demo import report
from jitney.demo.comparison import DemoRun, Measurement
from jitney.demo.prompts import DemoRequest

STATIC = Measurement("sync static", 1700, 480, 70.0, 24.25, 23.5, 57.0, 0.333, 0.004)
CONTINUOUS = Measurement("async continuous", 1700, 210, 35.0, 48.5, 4.7, 17.3, 0.69, 0.0004)


def test_the_table_has_a_line_for_each_run_with_all_its_numbers() -> None:
    *_, static, continuous = report.result_table([STATIC, CONTINUOUS]).splitlines()
    assert static.split() == ["sync", "static", "1,700", "70.0", "24.2", "23.50", "/", "57.00", "33%", "0.4%"]
    assert continuous.split()[-2:] == ["69%", "0.0%"]


def test_all_lines_of_the_table_end_in_the_same_column() -> None:
    assert len({len(line) for line in report.result_table([STATIC, CONTINUOUS]).splitlines()}) == 1


def test_the_ratio_is_of_the_second_run_to_the_first() -> None:
    line = report.ratio_line(STATIC, CONTINUOUS)
    assert "2.00 x the tokens/s" in line and "0.20 x the median time to the first token" in line


def test_the_explanation_is_japanese_as_well_in_a_japanese_locale() -> None:
    english = report.explanation({"LANG": "en_US.UTF-8"})
    assert report.explanation({}) == report.explanation({"LANG": "ja_JP.UTF-8", "LC_ALL": "C"}) == english
    for environment in ({"LANG": "ja_JP.UTF-8"}, {"LANG": "C", "LC_ALL": "ja_JP.UTF-8"}):
        assert report.explanation(environment) == f"{english}\n{report.EXPLANATION_JA}"


def test_the_samples_are_two_english_ones_and_a_japanese_one() -> None:
    prompts = ["Short?", "A very long prompt " * 20, "ひとつ", "ふたつ", "Another?", "A third?"]
    requests = [DemoRequest(prompt, 30) for prompt in prompts]
    text = report.samples(requests, [f"answer {index}" for index in range(len(prompts))])
    assert [line for line in text.splitlines() if line.startswith("> ")] == ["> Short?", "> Another?", "> ひとつ"]
    assert "answer 0" in text and "answer 4" in text and "answer 2" in text


def test_a_long_sample_is_cut() -> None:
    assert len(report.samples([DemoRequest("Short?", 30)], ["x" * 5000])) < report.MAX_SAMPLE_CHARACTERS + 50


def test_outputs_hold_both_answers_to_every_prompt(
    runs: list[DemoRun], requests: list[DemoRequest], tmp_path: Path
) -> None:
    report.write_outputs(tmp_path / "outputs.jsonl", requests, runs)
    records = [json.loads(line) for line in (tmp_path / "outputs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(record["prompt"], record["num_tokens"]) for record in records] == [
        (request.prompt, request.num_tokens) for request in requests
    ]
    for record in records:
        static, continuous = record["answers"]["sync static"], record["answers"]["async continuous"]
        assert static["text"] == continuous["text"]
        assert static["num_output_tokens"] == record["num_tokens"]
        assert 0 < continuous["first_token_s"] <= continuous["finished_s"]


def test_the_summary_names_machine_versions_and_settings(runs: list[DemoRun], tmp_path: Path) -> None:
    report.write_summary(tmp_path / "summary.json", "toy", runs)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["model"] == "toy" and summary["num_requests_with_equal_tokens"] == summary["num_requests"] == 48
    assert [run["name"] for run in summary["runs"]] == ["sync static", "async continuous"]
    assert summary["machine"]["cpus"] >= 1 and {"python", "torch"} <= set(summary["versions"])
