"""A small random Gemma 4 that reads images, on disk as transformers saves it, and its head."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import Gemma4Config, Gemma4ForConditionalGeneration

from support.random_pair import GEMMA4, VOCAB, add_tokenizer, write_head

IMAGE, BEGIN, END = VOCAB, VOCAB + 1, VOCAB + 2
VIDEO, AUDIO = VOCAB + 3, VOCAB + 4
PLACEHOLDER = "<|image|>"
NEVER = [IMAGE, VIDEO, AUDIO]
WORDS = [PLACEHOLDER, "<|image>", "<image|>", "<|video|>", "<|audio|>"]
ROWS = 70
"""Most rows of an image."""

IMAGE_PROCESSOR = {
    "do_convert_rgb": True, "do_normalize": False, "do_rescale": True, "do_resize": True,
    "image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": ROWS, "patch_size": 4,
    "pooling_kernel_size": 3, "resample": 3, "rescale_factor": 1 / 255,
}  # fmt: skip
PROCESSOR = {
    "image_processor": IMAGE_PROCESSOR,
    "image_seq_length": ROWS,
    "processor_class": "Gemma4Processor",
}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|turn>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}" + PLACEHOLDER + "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<turn|>\n{% endfor %}<|turn>model\n"
)
"""Of parts, as Gemma's own."""


def write_image_pair(directory: Path, seed: int = 0) -> tuple[Path, Path]:
    """Write `directory`/target and `directory`/head; returns both."""
    torch.manual_seed(seed)
    target_dir, head_dir = directory / "target", directory / "head"
    random_model().save_pretrained(target_dir)
    add_tokenizer(target_dir)
    add_words(target_dir)
    (target_dir / "processor_config.json").write_text(json.dumps(PROCESSOR))
    write_head(head_dir, VOCAB + len(WORDS))
    return target_dir, head_dir


def random_model() -> Gemma4ForConditionalGeneration:
    """Three layers, of these the last without a window, and two of a tower; float32."""
    text = GEMMA4 | {
        "vocab_size": VOCAB + len(WORDS), "use_bidirectional_attention": "vision",
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4,
        "pooling_kernel_size": 3, "position_embedding_size": 256, "standardize": True,
    }  # fmt: skip
    config = Gemma4Config(
        text_config=text, vision_config=vision, audio_config=None, image_token_id=IMAGE,
        boi_token_id=BEGIN, eoi_token_id=END, video_token_id=VIDEO, audio_token_id=AUDIO,
        attn_implementation="eager",
    )  # fmt: skip
    model = Gemma4ForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("std_scale") or "norm" in name:
                tensor.uniform_(0.5, 1.5)
            elif name.endswith(("std_bias", "position_embedding_table")):
                tensor.normal_(std=0.5)
            elif tensor.ndim == 2:
                tensor.normal_(std=tensor.shape[1] ** -0.5)
    return model


def add_words(directory: Path) -> None:
    """Add the tokens around images after the tokenizer's own, and a template that knows parts."""
    path = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    assert tokenizer.get_vocab_size() == VOCAB
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in WORDS])
    tokenizer.save(str(path))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
