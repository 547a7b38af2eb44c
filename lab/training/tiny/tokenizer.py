"""The pair's tokenizer: byte-level BPE in which every digit is a token of its own.

A number is then spelt the same way wherever it occurs, which is what lets a small model calculate.
"""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

VOCAB_SIZE = 1024
PAD, EOS, BOS, TURN_START, TURN_END = "<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>"
# Their order gives the ids: <pad> 0, <eos> 1 and <bos> 2, as in Gemma.
SPECIAL_TOKENS = [PAD, EOS, BOS, TURN_START, TURN_END]

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{%- if role not in ['system', 'user', 'model'] -%}
{{- raise_exception('unknown role ' ~ role) -}}
{%- endif -%}
{{- '<|turn>' ~ role ~ '\\n' ~ message['content'] | trim ~ '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|turn>model\\n' -}}
{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Trains the tokenizer on `texts`; it can encode any other text, byte by byte if need be."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if bpe.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"the texts give {bpe.get_vocab_size()} tokens, not {VOCAB_SIZE}: train on more stories"
        )
    # A plain prompt begins with <bos> too; the chat template writes its own and asks for none.
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=EOS,
        bos_token=BOS,
        additional_special_tokens=[TURN_START, TURN_END],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def chat_frame(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """What the chat template puts before and after the content of a single user turn."""
    marker = "CONTENT"
    messages = [{"role": "user", "content": marker}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prefix, suffix = str(text).split(marker)
    return prefix, suffix


def turn_end_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends the model's answer."""
    token_id = tokenizer.convert_tokens_to_ids(TURN_END)
    assert isinstance(token_id, int)
    return token_id


def generation_config(tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """Greedy decoding that stops at <eos> and at the end of the turn."""
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=[tokenizer.eos_token_id, turn_end_id(tokenizer)],
        do_sample=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json."""
    tokenizer.save_pretrained(folder)
    generation_config(tokenizer).save_pretrained(folder)
