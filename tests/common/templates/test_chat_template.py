"""Chat templates give the text that transformers gives, and fail where it fails."""

from typing import Any

import pytest
from jinja2.exceptions import SecurityError, TemplateError, UndefinedError
from transformers.utils.chat_template_utils import render_jinja_template

from eagle_aot.common.prompts import Message
from eagle_aot.common.templates.chat_template import ChatTemplate
from eagle_aot.targets.family import TINY_DIR

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
CONVERSATIONS: list[list[Message]] = [
    [{"role": "user", "content": "  Who?\n"}],
    [
        {"role": "system", "content": 'Be <brief> & "plain".'},
        {"role": "user", "content": "Tom?"},
        {"role": "assistant", "content": "<think>\nTwo.\n</think>\n\n<turn|>"},
        {"role": "user", "content": ""},
    ],
]
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FEATURES = {
    "tokens": "{{ bos_token }}{{ eos_token }}|{{ unk_token }}|{{ tools is none }}|{{ documents }}",
    "blocks": "{% for m in messages %}\n  {% if loop.first %}\n{{ m.content }}\n  {% endif %}\n"
    "{% endfor %}\n",
    "loops": "{% for m in messages if m['role'] != 'system' %}{{ m.content | trim | upper | e }}"
    "{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}",
    "macros": "{% set x = messages[-1] %}{% macro f(a) %}[{{ a }}]{% endmacro %}"
    "{{ f(x.role) }}{{ x.missing }}{% for i in range(2) %}{{ i }}{% endfor %}",
    "date": "{{ strftime_now('%Y-%m') }}",
    "json": "{{ messages | tojson }}{{ {'b': 1, 'a': '<é>'} | tojson(indent=2, sort_keys=true) }}",
    "namespace": "{% set n = namespace(a=1, b=2) %}{% set n.a = n.b + 1 %}{{ n.a }}",
    "dict": "{{ dict(a=1).a }}{{ dict([('b', 2)]) }}{{ dict.fromkeys('ab') }}",
    "generation": "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}"
    "{{ m.content }}{{ loop.index }}{{ x }}{% endgeneration %}{{ x }}{% endfor %}",
    "map": "{{ messages | map(attribute='role') | join(',') }}",
    "strings": "{% for m in messages[::-1] %}{% if m.content.startswith('<think>') %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% elif m.content is string %}"
    "{{ loop.index0 }}{{ messages | length }}{% endif %}{% endfor %}",
    "undefined": "{% if not enable_thinking %}no{% endif %}",
}
TEMPLATES = FEATURES | {
    "gemma4-tiny": (TINY_DIR / "target" / "chat_template.jinja").read_text(),
    "smollm2": SMOLLM2,
}


def render(template: str, messages: list[Message], prompt: bool = True) -> str:
    return ChatTemplate(template).render(
        messages=messages, tools=None, documents=None, add_generation_prompt=prompt, **SPECIAL
    )


def transformers_render(template: str, messages: list[Message], prompt: bool = True) -> str:
    chats: Any = [messages]
    (text,), _ = render_jinja_template(
        chats, chat_template=template, add_generation_prompt=prompt, **SPECIAL
    )
    return text


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=len)
@pytest.mark.parametrize("prompt", [True, False])
def test_templates_give_the_text_of_transformers(
    name: str, messages: list[Message], prompt: bool
) -> None:
    expected = transformers_render(TEMPLATES[name], messages, prompt)
    assert render(TEMPLATES[name], messages, prompt) == expected


@pytest.mark.parametrize("template", [
    "{% if messages %}{{ raise_exception('roles must alternate') }}{% endif %}",
    "{{ 1 / (messages | length - messages | length) }}",
    "{{ messages.append(1) }}",
    "{{ messages.__class__.__mro__ }}",
    "{{ messages[0].content.unheard_of() }}",
    "{{ strftime_now.__globals__.x }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{% if %}",
    "{{ messages | unheard_of }}",
    "{% generation %}",
    "{{ range(10 ** 9) }}",
])  # fmt: skip
def test_templates_fail_as_with_transformers(template: str) -> None:
    with pytest.raises(Exception) as expected:
        transformers_render(template, CONVERSATIONS[0])
    with pytest.raises(Exception) as raised:
        render(template, CONVERSATIONS[0])
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("template", [
    "{% set n = namespace(_Namespace__attrs=1) %}",
    "{% set n = namespace({'__class__': 1}) %}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "{{ dict.mro() }}",
    "{{ dict.__subclasses__() }}",
])  # fmt: skip
def test_templates_reach_no_internals_of_python(template: str) -> None:
    with pytest.raises((SecurityError, UndefinedError)):
        render(template, CONVERSATIONS[0])


@pytest.mark.parametrize(("template", "line"), [
    ("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", "steps"),
    ("{% for a in x %}{% for b in x %}{% for c in x %}{% endfor %}{% endfor %}{% endfor %}", "s"),
    ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
     "steps of a chat template: 65537 is more than 65536"),
    ("{% for a in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}", "recursion|steps"),
    ("{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}",
     "a value of a chat template: 524288 is more than 262144"),
    ("{% set n = namespace(a='a') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
     "a text of a chat template: 33554432 is more"),
    ("{% for i in range(90000) %}{{ 'a' * 90000 }}{% endfor %}", "the text of a chat template"),
    ("{{ 'a' * 10 ** 9 }}", "a value of a chat template: 1000000000 is more"),
    ("{{ 10 ** 9 * [1] }}", "a value of a chat template: 1000000000 is more"),
    ("{{ 9 ** (9 ** 9) }}", "bits of a number of a chat template"),
    ("{{ '%1000000000d' % 1 }}", "formats a text of any width: '%1000000000d'"),
    ("{{ '%*d' % (1000000000, 1) }}", "formats a text of any width"),
    ("a" * (1 << 20) + "a", "a chat template: 1048577 is more than 1048576"),
    ("{{ lipsum(10 ** 8) }}", "'lipsum' is undefined"),
    ("{{ 'a' | center(10 ** 9) }}", "No filter named 'center'"),
    ("{{ ['a'] | map('center', 10 ** 9) | list }}", "No filter named 'center'"),
    ("{{ [1] | slice(10 ** 8) }}", "No filter named 'slice'"),
    ("{{ 'a'.zfill(10 ** 9) }}", r"calls zfill\(\), which is not supported"),
    ("{{ ('a' | attr('ljust'))(10 ** 9) }}", r"calls ljust\(\), which is not supported"),
    ("{{ '\t'.expandtabs(10 ** 9) }}", r"calls expandtabs\(\)"),
    ("{{ '{:>1000000000}'.format('a') }}", "formats a text of any width: '{:>1000000000}'"),
    ("{{ '{:>{}}'.format('a', 10 ** 9) }}", "formats a text of any width"),
    ("{{ '%1000000000d' | format(1) }}", "formats a text of any width"),
    ("{{ ('%(a)s' * 9999) | format(a='a' * 99999) }}", "a text of a chat template: "),
    ("{{ strftime_now('%1000000000Y') }}", "formats a text of any width"),
    ("{{ 'a' | indent(10 ** 9) }}", "an indent of a chat template: 1000000000 is more than 64"),
    ("{{ [1] | tojson(indent=10 ** 9) }}", "the indent of JSON in a chat template: 1000000000"),
    ("{% set a = 'a' * 9999 %}{{ a.replace('', a) }}", "a text of a chat template: 99999999 is"),
    ("{% set a = 'a' * 9999 %}{{ a | replace('a', a) }}", "a text of a chat template: 99990"),
    ("{% set a = 'a' * 9999 %}{{ a.join(a) }}", "a text of a chat template: 99990000 is"),
    ("{% set a = 'a' * 9999 %}{{ a | list | join(a) }}", "a text of a chat template: 99990000"),
    ("{{ ['a' * 99999] * 999 }}", "a value of a chat template: 99899001 is more"),
    ("{{ ('a' * 99999) | map('replace', '', 'a' * 4999999) | list }}", "reads and makes"),
    ("{% set n = namespace(a=1) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% endfor %}",
     "values of a chat template: "),
    ("{% set n = namespace(a='a') %}{% for i in range(60) %}{% set n.a %}{{ n.a }}{{ n.a }}"
     "{% endset %}{% endfor %}", "a value of a chat template: 33554432 is more than 16777216"),
    ("{% set a = [0] * 99999 %}{% for i in range(60000) %}{{ 1 in a }}{% endfor %}", "reads and"),
    ("{% set a = 'a' * 9999999 %}{% for i in range(60000) %}{% set b = a[1:] %}{% endfor %}",
     "what a chat template reads and makes: "),
    ("{% block a %}{{ self.b() }}{{ self.b() }}{% endblock %}"
     "{% block b %}{{ self.a() }}{% endblock %}", "recursion"),
])  # fmt: skip
def test_templates_that_would_not_end_are_stopped(template: str, line: str) -> None:
    with pytest.raises((TemplateError, SecurityError, RecursionError), match=line):
        ChatTemplate(template).render(x=1000 * "a")


def test_bounds_leave_room_for_long_conversations() -> None:
    messages: list[Message] = [{"role": "user", "content": 4000 * "a"}] * 1024
    assert render(SMOLLM2, messages) == transformers_render(SMOLLM2, messages)
