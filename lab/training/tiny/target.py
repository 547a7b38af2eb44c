"""The target `gemma4-tiny`: a six-layer Gemma-4 text decoder, trained and stored in INT4.

Training has two phases on one learning-rate schedule: full precision first, then with
fake-quantised weights, so that the stored INT4 model is the one that was trained.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Gemma4ForCausalLM, Gemma4TextConfig
from transformers import PreTrainedTokenizerFast as Tokenizer

from eagle_aot.common.tensors import save_tensors
from eagle_aot.lab.training.heads.corpus import Batch, Corpus
from eagle_aot.lab.training.loop import Budget, TrainingProgress, autocast, train
from eagle_aot.lab.training.tiny import quantise
from eagle_aot.lab.training.tiny.corpus import first_stories
from eagle_aot.lab.training.tiny.stories import Story, final_answer
from eagle_aot.lab.training.tiny.tokenizer import VOCAB_SIZE, chat_frame, generation_config

# Every special case of the large Gemma-4 models, at 1/5000 of their size.
GEOMETRY: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "global_head_dim": 128,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 64,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e6,
        },
    },
}
# Share of the training that runs in full precision.
FULL_PRECISION = 0.6
# A question is drawn at random and cannot be predicted; a little weight on it still teaches words.
QUESTION_WEIGHT = 0.05
ANSWER_TOKENS = 192
EVALUATION_BATCH = 256


@dataclass(frozen=True, slots=True)
class TargetResult:
    """A trained target, already holding the stored numbers, and how it fared."""

    model: Gemma4ForCausalLM
    tensors: dict[str, Tensor]
    progress: TrainingProgress
    accuracy_full_precision: float
    accuracy: float

    def summary(self) -> dict[str, Any]:
        """What training.json says about the target."""
        return {
            **self.progress.summary(),
            "accuracy_full_precision": self.accuracy_full_precision,
            "accuracy": self.accuracy,
        }


def build_target() -> Gemma4ForCausalLM:
    """A fresh target in float32, every one of its numbers trainable."""
    model = Gemma4ForCausalLM(Gemma4TextConfig(**GEOMETRY))
    for layer in model.model.layers:
        attention = layer.self_attn
        # Attention scales by 1.0: the two head norms carry the usual 1/sqrt(head_dim) instead.
        for norm in (attention.q_norm, attention.k_norm):
            nn.init.constant_(norm.weight, attention.head_dim**-0.25)
        # A buffer in transformers; the name in the checkpoint stays the same.
        scalar = layer.layer_scalar
        del layer.layer_scalar
        layer.layer_scalar = nn.Parameter(scalar.clone())
    return model


def train_target(
    corpus: Corpus, tokenizer: Tokenizer, budget: Budget, seed: int, problems: int
) -> TargetResult:
    """Trains a target on the corpus, quantises it and counts right answers before and after."""
    device = corpus.flat.device
    model = build_target()
    model.to(device).eval()
    model.generation_config = generation_config(tokenizer)
    quantising = False

    def start_quantising(fraction: float) -> None:
        nonlocal quantising
        if fraction >= FULL_PRECISION and not quantising:
            quantising = True
            quantise.start_fake_quantisation(model)

    progress = train(
        model,
        "target",
        budget,
        partial(corpus.batches, budget.tokens, seed),
        partial(_loss_of_next, model),
        on_fraction=start_quantising,
    )
    quantise.stop_fake_quantisation(model)
    held_out = first_stories(problems, seed, "test")
    accuracy_before = accuracy(model, tokenizer, held_out)
    tensors = quantise.quantise_model(model)
    accuracy_after = accuracy(model, tokenizer, held_out)
    return TargetResult(model, tensors, progress, accuracy_before, accuracy_after)


def save_target(result: TargetResult, folder: Path) -> None:
    """Writes config.json and model.safetensors in the compressed-tensors layout."""
    config = result.model.config
    config.dtype = torch.bfloat16
    config.quantization_config = quantise.QUANTIZATION_CONFIG
    config.save_pretrained(folder)
    save_tensors(result.tensors, folder / "model.safetensors", metadata={"format": "pt"})


def accuracy(model: Gemma4ForCausalLM, tokenizer: Tokenizer, problems: list[Story]) -> float:
    """The share of problems whose greedy answer ends with the right number."""
    rows = generate(model, tokenizer, [story.question for story in problems])
    texts = (str(tokenizer.decode(row[start:], skip_special_tokens=True)) for row, start in rows)
    right = [final_answer(t) == story.final for t, story in zip(texts, problems, strict=True)]
    return sum(right) / len(right)


@torch.no_grad()
def generate(
    model: Gemma4ForCausalLM, tokenizer: Tokenizer, questions: list[str]
) -> list[tuple[list[int], int]]:
    """Greedy answers: for every question its whole token row and where the answer starts in it."""
    model.train(False)
    decoder: Any = model  # its generate() is typed for a protocol that it does not declare
    prefix, suffix = chat_frame(tokenizer)
    rows = []
    for first in range(0, len(questions), EVALUATION_BATCH):
        prompts = [prefix + q + suffix for q in questions[first : first + EVALUATION_BATCH]]
        inputs = tokenizer(prompts, add_special_tokens=False, padding=True, return_tensors="pt")
        inputs = inputs.to(model.device)
        output = decoder.generate(**inputs, max_new_tokens=ANSWER_TOKENS)
        assert isinstance(output, Tensor)
        starts = inputs["attention_mask"].sum(-1).tolist()
        rows += [
            (_strip(row, tokenizer), start)
            for row, start in zip(output.tolist(), starts, strict=True)
        ]
    return rows


def _strip(row: list[int], tokenizer: Tokenizer) -> list[int]:
    """Takes the padding off both ends of a generated row."""
    return [token for token in row if token != tokenizer.pad_token_id]


def _loss_of_next(model: Gemma4ForCausalLM, batch: Batch) -> tuple[Tensor, int]:
    model.train()
    with autocast(batch.tokens.device):
        logits = model(input_ids=batch.tokens, use_cache=False).logits
    weight = torch.where(batch.answer, 1.0, QUESTION_WEIGHT) * batch.valid
    loss = F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), batch.tokens[:, 1:].flatten(), reduction="none"
    )
    weight = weight[:, 1:].flatten()
    return (loss * weight).sum() / weight.sum(), batch.tokens.numel()
