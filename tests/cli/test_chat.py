import io
import signal
import sys
from typing import Any

import pytest

from jitney.cli import main as cli
from jitney.cli.streaming import TextPrinter
from jitney.text.chat_template import ChatTemplate

pytestmark = pytest.mark.usefixtures("toy_model")


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that the chat template makes, as they are made."""
    seen: list[str] = []
    render = ChatTemplate.render

    def recorded(self: ChatTemplate, *args: Any, **kwargs: Any) -> str:
        seen.append(render(self, *args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(ChatTemplate, "render", recorded)
    return seen


def chat(monkeypatch: pytest.MonkeyPatch, typed: str, *argv: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    return cli.main(["chat", "--ignore-eos", "--max-tokens", "4", *argv])


def test_each_turn_sees_the_ones_before(
    prompts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(monkeypatch, "one\n\ntwo\n") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert 0 < len(first) <= 4 and 0 < len(second) <= 4
    assert prompts == ["[user]one\n[assistant]", f"[user]one\n[assistant]{first}\n[user]two\n[assistant]"]


def test_reset_and_system_begin_anew(prompts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert chat(monkeypatch, "one\n/reset\ntwo\n/system Be brief.\nthree\n/system\nfour\n") == 0
    assert prompts == [
        "[user]one\n[assistant]",
        "[user]two\n[assistant]",
        "[system]Be brief.\n[user]three\n[assistant]",
        "[user]four\n[assistant]",
    ]


def test_a_system_message_may_come_as_a_flag(prompts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert chat(monkeypatch, "one\n", "--system", "Be kind.") == 0
    assert prompts == ["[system]Be kind.\n[user]one\n[assistant]"]


def test_exit_leaves_at_once(prompts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert chat(monkeypatch, "/exit\none\n") == 0
    assert prompts == []


@pytest.mark.parametrize("command", ["/help", "/quit"])
def test_help_and_unknown_commands_show_the_commands(
    command: str, prompts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(monkeypatch, command + "\n") == 0
    out, err = capsys.readouterr()
    assert out == "" and prompts == []
    assert all(name in err for name in ("/exit", "/reset", "/system TEXT", "/help"))
    assert ("unknown command /quit" in err) == (command == "/quit")


def test_a_message_that_does_not_fit_is_left_out_and_the_talk_goes_on(
    prompts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(monkeypatch, "x" * 600 + "\ntwo\n") == 0
    out, err = capsys.readouterr()
    assert "max_model_len" in err and "/reset" in err
    assert prompts[-1] == "[user]two\n[assistant]" and len(out.splitlines()) == 1


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(
    prompts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show = TextPrinter.show
    interrupts = iter([True])

    def show_then_interrupt(self: TextPrinter, text: str) -> None:
        show(self, text)
        if len(text) >= 2 and next(interrupts, False):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TextPrinter, "show", show_then_interrupt)
    assert chat(monkeypatch, "one\ntwo\n", "--max-tokens", "300") == 0
    out, err = capsys.readouterr()
    stopped = out.splitlines()[0]
    assert "(stopped)" in err and 2 <= len(stopped) < 300
    assert prompts[1] == f"[user]one\n[assistant]{stopped}\n[user]two\n[assistant]"


def test_ctrl_c_at_the_prompt_does_not_leave(
    prompts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter([KeyboardInterrupt(), "one", EOFError()])

    def type_next(prompt: str) -> str:
        event = next(typed)
        if isinstance(event, BaseException):
            raise event
        return event

    monkeypatch.setattr("builtins.input", type_next)
    assert chat(monkeypatch, "") == 0
    assert "/exit to leave" in capsys.readouterr().err
    assert prompts == ["[user]one\n[assistant]"]
