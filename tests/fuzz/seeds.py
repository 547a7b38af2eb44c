"""Small valid files of every kind that is read, which `tests/fuzz` damages.

`PYTHONPATH=tests python -m fuzz.seeds DIRECTORY` writes them; those of the repository lie in
`tests/data/fuzz/seeds`, one folder per reader.
"""

import json
import shutil
import sys
from pathlib import Path

import msgspec
import torch
from executorch.extension.llm.export.quant import QuantConfig, quantize_weight
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

from eagle_aot.artifact import MANIFEST, PROGRAM, WEIGHTS, file_record
from eagle_aot.export import ExportSpec, run_export
from support.files.cuda import Files, sample_files
from support.files.gguf import GgufModel, random_q4_k
from support.files.int4 import awq, gptq, rounded, write_linear
from support.gemma_oracle import random_gemma, save_text_layout, write_config
from support.heads.files import (
    HeadShape,
    head_tensors,
    safeailab_config,
    speculators_config,
    target_mask,
    write_head,
)
from support.picture_pair import PROCESSOR
from support.pictures import drawn, stored
from support.pre_norm_oracle import LLAMA3_ROPE, YARN_ROPE, random_pre_norm

SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16}
HEAD = HeadShape(
    hidden=16, target_hidden=16, vocab=32, draft_vocab=8, inner=16, heads=2, kv_heads=1
)
TEMPLATE = "{% for m in messages %}<user>{{ m['content'] }}{% endfor %}"


def write_seeds(root: Path) -> None:
    """One folder per reader."""
    write_program(root)
    write_targets(root)
    write_heads(root)
    write_int4(root)
    write_tokenizer(root / "tokenizer")
    write_pictures(root / "pictures")
    write_artifact(root)


def write_program(root: Path) -> None:
    files: Files = sample_files()
    for name, content in ((PROGRAM, files.program()), (WEIGHTS, files.tensor_data())):
        folder = root / Path(name).suffix.removeprefix(".")
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
    table = root / "weight_table"
    table.mkdir()
    (table / "table").write_bytes(files.methods[0].payload)


def write_targets(root: Path) -> None:
    """Of every family, as transformers saves them."""
    kinds = ["sliding_attention", "full_attention"]
    save_text_layout(random_gemma(**SMALL, layer_types=kinds), root / "gemma4")
    geometry = SMALL | {"num_hidden_layers": 2}
    ropes = {"llama": LLAMA3_ROPE, "qwen3": YARN_ROPE}
    for family, rope in ropes.items():
        model = random_pre_norm(family, **geometry, rope_parameters=rope)
        model.save_pretrained(root / family)
    for directory in (root / "gemma4", root / "llama", root / "qwen3"):
        halve(directory / "model.safetensors")


def halve(path: Path) -> None:
    """Hold a file's tensors in bfloat16: half the size."""
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def write_heads(root: Path) -> None:
    tensors = head_tensors(HEAD)
    flat = safeailab_config(HEAD, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3]})
    write_head(root / "head", {n: t if n == "d2t" else t.half() for n, t in tensors.items()}, flat)
    small = {name: t if name == "d2t" else t.half() for name, t in tensors.items()}
    write_head(root / "head_pickled", small, flat, pickled=True)
    nested = speculators_config(HEAD, [0, 1, 2])
    write_head(root / "head_speculators", small | {"t2d": target_mask(HEAD, tensors)}, nested)


def write_int4(root: Path) -> None:
    """One linear in every quantised format."""
    torch.manual_seed(0)
    weight = torch.randn(8, 64)
    write_linear(root / "awq", awq(rounded(weight, 32)), {"quant_method": "awq", "bits": 4})
    tensors = gptq(rounded(weight, 32), version=1)
    write_linear(root / "gptq", tensors, {"quant_method": "gptq", "bits": 4, "group_size": 32})
    write_compressed_tensors(root / "compressed_tensors")
    write_torchao(root / "torchao")
    write_gguf(root / "gguf")


def write_compressed_tensors(directory: Path) -> None:
    tensors = {
        "weight_packed": torch.randint(-(2**31), 2**31, (8, 8), dtype=torch.int32),
        "weight_scale": torch.rand(8, 2),
        "weight_shape": torch.tensor([8, 64]),
        "weight_zero_point": torch.randint(-(2**31), 2**31, (1, 2), dtype=torch.int32),
    }
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "symmetric": False}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    write_linear(directory, tensors, config)


def write_torchao(directory: Path) -> None:
    write_config(directory, {})
    int4 = QuantConfig(bits=4, group_size=32, symmetric=False, method="min_max")
    int8 = QuantConfig(bits=8, group_size=32, symmetric=True, method="min_max")
    weight = torch.randn(4, 64).bfloat16()
    whole = {
        "a.weight": quantize_weight(weight, int4),
        "b.weight": quantize_weight(weight, int8),
        "c.weight": weight,
    }
    data, described = flatten_tensor_state_dict(whole)
    save_file(data, directory / "model.safetensors", metadata=described)


def write_gguf(directory: Path) -> None:
    write_config(directory, {})
    model = GgufModel(directory / "model.gguf", "llama")
    model.writer.add_head_count(2)
    model.writer.add_head_count_kv(1)
    model.add("model.norm.weight", torch.ones(8))
    model.add("model.embed_tokens.weight", torch.randn(4, 32), Type.Q8_0)
    model.add("model.layers.0.self_attn.q_proj.weight", torch.randn(8, 32), Type.Q4_0)
    model.add("model.layers.0.mlp.up_proj.weight", torch.randn(4, 32), Type.BF16)
    model.add_bytes("blk.0.ffn_down.weight", random_q4_k(1, 256), Type.Q4_K)
    model.close()


def write_tokenizer(directory: Path) -> None:
    """Letters, one merge, a start of text, a template."""
    words = ["<bos>", "<unk>", "<user>", *"abcdefghijklmnopqrstuvwxyz", "th", "\u0120"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(words[:3])
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')


def write_pictures(directory: Path) -> None:
    """One of each format, a photo with data beside it, and how they are made ready."""
    directory.mkdir(parents=True)
    image = drawn(20, 30)
    exif = image.getexif()
    exif[0x112] = 6
    (directory / "photo.jpg").write_bytes(stored(image, "JPEG", exif=exif))
    (directory / "drawing.png").write_bytes(stored(image.convert("P")))
    (directory / "picture.webp").write_bytes(stored(image, "WEBP"))
    (directory / "processor_config.json").write_text(json.dumps(PROCESSOR))


def write_artifact(root: Path) -> None:
    """What a real export records, beside a program that is cut to a few bytes."""
    target = Path(shutil.copytree(root / "gemma4", root / "pair"))
    shutil.copytree(root / "tokenizer", target, dirs_exist_ok=True)
    prompts = root / "prompts.jsonl"
    prompts.write_text("\n".join(f'{{"token_ids": [3, {4 + i}]}}' for i in range(20)))
    run_export(
        ExportSpec(
            target_model="auto",
            target_dir=target,
            draft_dir=root / "head_speculators",
            output_dir=root / "artifact",
            backend="xnnpack",
            max_seq_len=32,
            self_test_prompts=prompts,
        )
    )
    shutil.rmtree(target)
    prompts.unlink()
    program, manifest = root / "artifact" / PROGRAM, root / "artifact" / MANIFEST
    program.write_bytes(program.read_bytes()[:64])
    stored = json.loads(manifest.read_bytes())
    stored["files"][PROGRAM] = msgspec.to_builtins(file_record(program))
    manifest.write_text(json.dumps(stored, indent=1))


if __name__ == "__main__":
    write_seeds(Path(sys.argv[1]))
