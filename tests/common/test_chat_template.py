"""Chat templates give the text that transformers gives, and fail where it fails."""

from typing import Any

import pytest
from jinja2.exceptions import SecurityError, UndefinedError
from transformers.utils.chat_template_utils import render_jinja_template

from eagle_aot.common.chat_template import compile_template
from eagle_aot.common.prompts import Message
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
QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}{{ tools | tojson }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not \
(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = \
content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
LLAMA3 = """\
{{- bos_token }}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
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
    "map": "{{ messages | map(attribute='role') | join(',') }}{{ lipsum is defined }}",
    "undefined": "{% if not enable_thinking %}no{% endif %}",
}
TEMPLATES = FEATURES | {
    "gemma4-tiny": (TINY_DIR / "target" / "chat_template.jinja").read_text(),
    "smollm2": SMOLLM2,
    "qwen3": QWEN3,
    "llama3": LLAMA3,
}


def render(template: str, messages: list[Message], prompt: bool = True) -> str:
    return compile_template(template).render(
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


@pytest.mark.parametrize(
    "template",
    [
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
    ],
)
def test_templates_fail_as_with_transformers(template: str) -> None:
    with pytest.raises(Exception) as expected:
        transformers_render(template, CONVERSATIONS[0])
    with pytest.raises(Exception) as raised:
        render(template, CONVERSATIONS[0])
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize(
    "template",
    [
        "{% set n = namespace(_Namespace__attrs=1) %}",
        "{% set n = namespace({'__class__': 1}) %}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ dict.mro() }}",
        "{{ dict.__subclasses__() }}",
    ],
)
def test_templates_reach_no_internals_of_python(template: str) -> None:
    with pytest.raises((SecurityError, UndefinedError)):
        render(template, CONVERSATIONS[0])
