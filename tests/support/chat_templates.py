"""Tokenizers of bytes, and chat templates that write tool calls as published ones do."""

from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from eagle_aot.common.tokenizer import Tokenizer

END = "<|im_end|>"
TURN = "{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
ANSWER = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
THINKING = ANSWER + (
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
DECLARED = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"


def template(call: str, ending: str) -> str:
    """Return a template whose assistant writes `call` for each function `f`."""
    calls = f"{{% for c in m.tool_calls or [] %}}{{% set f = c.function %}}{call}{{% endfor %}}"
    return (
        f"{DECLARED}{{% for m in messages %}}{TURN}{calls}{{{{ '{END}' }}}}{{% endfor %}}{ending}"
    )


PLAIN = f"{{% for m in messages %}}{TURN}{{{{ '{END}' }}}}{{% endfor %}}{ANSWER}{{% endif %}}"
TEMPLATES = {
    "hermes": template(
        '{{ \'<tool_call>\\n{"name": "\' + f.name + \'", "arguments": \' }}'
        "{{ f.arguments | tojson }}{{ '}\\n</tool_call>' }}",
        THINKING,
    ),
    "qwen3_xml": template(
        "{{ '<tool_call>\\n<function=' + f.name + '>\\n' }}{% for k, v in f.arguments | items %}"
        "{{ '<parameter=' + k + '>\\n' }}{{ v if v is string else v | tojson }}"
        "{{ '\\n</parameter>\\n' }}{% endfor %}{{ '</function>\\n</tool_call>' }}",
        ANSWER + "{{ '<think>\\n' }}{% endif %}",
    ),
    "llama3_json": template(
        '{{ \'{"name": "\' + f.name + \'", "parameters": \' }}{{ f.arguments | tojson }}'
        "{{ '}' }}",
        ANSWER + "{% endif %}",
    ),
    "gemma4": "{% macro value(v) %}{% if v is string %}{{ '<|\"|>' + v + '<|\"|>' }}"
    "{% elif v is mapping %}{{ '{' }}{% for k, x in v | dictsort %}{{ k }}:{{ value(x) }}"
    "{{ ',' if not loop.last }}{% endfor %}{{ '}' }}{% elif v is iterable %}{{ '[' }}"
    "{% for x in v %}{{ value(x) }}{{ ',' if not loop.last }}{% endfor %}{{ ']' }}"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
    + template(
        "{{ '<|tool_call>call:' + f.name + value(f.arguments) + '<tool_call|>' }}",
        ANSWER + "{% if enable_thinking is defined and not enable_thinking %}"
        "{{ '<|channel>thought\\n<channel|>' }}{% endif %}{% endif %}",
    ),
}
"""By the names of the formats."""
SPECIAL = {
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    "llama3_json": ("<|python_tag|>",),
}
ADDED = dict.fromkeys(
    ("hermes", "qwen3_xml"), ("<tool_call>", "</tool_call>", "<think>", "</think>")
)


def byte_tokenizer(
    chat_template: str | None, special: Sequence[str] = (), added: Sequence[str] = ()
) -> Tokenizer:
    """Return a tokenizer of the 256 bytes, and of `END`, `special` and `added` tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in (END, *special)])
    backend.add_tokens([AddedToken(text, special=False) for text in added])
    return Tokenizer(backend, {}, chat_template)


def format_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer of a model that writes calls in a format."""
    return byte_tokenizer(TEMPLATES[name], SPECIAL.get(name, ()), ADDED.get(name, ()))
