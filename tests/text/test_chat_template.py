"""Chat templates: what they may do, what they get, and whose fault an error is."""

import json
from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from jitney.errors import RequestError
from jitney.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi <b>&amp;</b> 日本"}, {"role": "assistant", "content": "Yes"}]

SOURCES = {
    "blocks": "{% for m in messages %}\n  {% if m.role == 'user' %}\nU: {{ m.content }}\n {% endif %}\n{% endfor %}\n",
    "json": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}",
    "loop controls": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "tools": "{% if tools is not none %}tools{% else %}none{% endif %}{% if add_generation_prompt %}>{% endif %}",
    "undefined": "[{{ nothing_like_this }}]{{ messages[0].nothing }}",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_templates_render_as_in_transformers(source: str, add_generation_prompt: bool) -> None:
    expected: Any = render_jinja_template(
        conversations=[MESSAGES], chat_template=source, add_generation_prompt=add_generation_prompt
    )[0]
    assert [ChatTemplate(source).render(MESSAGES, add_generation_prompt)] == expected


def test_special_tokens_and_further_variables_reach_the_template() -> None:
    template = ChatTemplate("{{ bos_token }}{{ mood }}", {"bos_token": "<s>"})
    assert template.render(MESSAGES, mood="calm") == "<s>calm"


def test_the_date_is_available() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}").render(MESSAGES) in {
        str(datetime.now().year),
        str(datetime.now().year + 1),
    }


def test_text_parts_are_joined() -> None:
    content = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render([{"role": "user", "content": content}]) == "one\ntwo"


def test_an_assistant_message_that_only_calls_tools_needs_no_content() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    source = "{{ messages[0].content }}{{ messages[0].tool_calls[0].function.name }}"
    assert ChatTemplate(source).render([message]) == "f"


def test_the_callers_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "one"}]}]
    before = json.dumps(messages)
    ChatTemplate("{{ messages }}").render(messages)
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ("hello", "must be a list"),
        ({"role": "user", "content": "x"}, "must be a list"),
        (None, "must be a list"),
        ([], "empty"),
        (["hello"], r"messages\[0\] must be a dict"),
        ([{"content": "x"}], r"messages\[0\].role"),
        ([{"role": 3, "content": "x"}], r"messages\[0\].role"),
        ([MESSAGES[0], {"role": "user"}], r"messages\[1\].content"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\].content\[0\]"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], r"content\[0\].text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "image_url.*only text"),
    ],
)
def test_malformed_messages_are_refused_by_place(messages: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint) as caught:
        ChatTemplate("x").render(messages)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "not valid jinja2"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages[0].content + 1 }}", "failed"),
        ("{{ nothing.like.this }}", "undefined"),
    ],
)
def test_errors_of_a_template_are_the_requests_and_say_why(source: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint) as caught:
        ChatTemplate(source).render(MESSAGES)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_templates_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises(RequestError):
        ChatTemplate(source).render(MESSAGES)
