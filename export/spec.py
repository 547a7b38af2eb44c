"""The options of an export, for the command line, Python and manifests. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from eagle_aot.artifact import NGRAM
from eagle_aot.common.errors import SettingError
from eagle_aot.common.spec import Option, check_fields

AUTO, DUMMY, NONE, FLOAT32 = "auto", "dummy", "none", "float32"
CUDA, XNNPACK = "cuda", "xnnpack"
SPLITK, STOCK = "splitk", "stock"
TEXT_AND_IMAGES = "text,image"

DrafterName = Literal[
    "auto", "eagle3", "p-eagle", "dflash", "dflash2", "dspark", "gemma4-assistant", "mtp", "ngram"
]
Scheme = Literal[
    "int4-g32", "int4-g64", "int4-g128", "int4-g32-hqq", "int4-g64-hqq", "int4-g128-hqq"
]
Quant = Literal["none", "int8", "int4"]
TableQuant = Literal["none", "int8", "int4", "int8-lossless"]
Backend = Literal["auto", "cuda", "xnnpack"]
Attention = Literal["splitk", "stock"]

CHECKPOINTS, PROGRAM, WEIGHTS = "Checkpoints", "Program", "Weights"
IMAGES, RUN = "Images", "Run"


class ExportSpec(msgspec.Struct, kw_only=True, frozen=True):
    """What to export, and how. None stands for the default of the head, target or backend."""

    target_model: Annotated[str | None, Option(
        "The target: a name that eagle-inspect targets lists, a repository on the Hugging Face "
        "Hub, ORG/NAME[@REVISION][:FILE.gguf], a directory or a .gguf. With --target-dir a name, "
        "or auto: the model_type in config.json.",
        CHECKPOINTS, "NAME|ORG/NAME|PATH")] = None  # fmt: skip
    draft_model: Annotated[str | None, Option(
        "The draft head: ORG/NAME[@REVISION] or a directory. Default: the public head of the "
        "target.", CHECKPOINTS, "ORG/NAME|DIR", recorded=False)] = None  # fmt: skip
    revision: Annotated[str | None, Option(
        "Branch, tag or commit of the target's repository.", CHECKPOINTS, "REVISION",
        recorded=False)] = None  # fmt: skip
    target_dir: Annotated[Path | None, Option(
        "The target's checkpoint.", CHECKPOINTS, "DIR|FILE.gguf",
        recorded=False)] = None  # fmt: skip
    draft_dir: Annotated[Path | None, Option(
        "The draft head's checkpoint.", CHECKPOINTS, "DIR", recorded=False)] = None  # fmt: skip
    drafter: Annotated[DrafterName, Option(
        "The drafter's kind. auto: the kind of the head, or ngram without a head. Another kind "
        "that is published for the target selects that head; mtp: the layer that the target's "
        "own checkpoint has.",
        CHECKPOINTS)] = "auto"  # fmt: skip
    tap_layers: Annotated[tuple[int, ...] | None, Option(
        "Layers whose hidden states the head reads, counted as layers already applied.",
        CHECKPOINTS, "A,B,C", commas=True)] = None  # fmt: skip
    load_format: Annotated[Literal["auto", "dummy"], Option(
        "dummy: the whole geometry with random weights.", CHECKPOINTS)] = "auto"  # fmt: skip
    dummy_layers: Annotated[int | None, Option(
        "Only the first N layers of a dummy.", CHECKPOINTS, "N", least=1)] = None  # fmt: skip
    output_dir: Annotated[Path | None, Option(
        "Default: ./NAME-BACKEND.", PROGRAM, "DIR", recorded=False)] = None  # fmt: skip
    backend: Annotated[Backend, Option(
        "auto: cuda where there is a GPU, else xnnpack.", PROGRAM)] = "auto"  # fmt: skip
    attention: Annotated[Attention | None, Option(
        "The operators that read KV caches: the project's for CUDA, or PyTorch's.", PROGRAM,
        shown=False)] = None  # fmt: skip
    chain_len: Annotated[int | None, Option(
        "Default number of draft tokens per round.", PROGRAM, "K", least=1,
        most=15)] = None  # fmt: skip
    max_seq_len: Annotated[int | None, Option(
        "Context of a sequence, in tokens.", PROGRAM, "N", least=16,
        most=2**20)] = None  # fmt: skip
    max_prefill: Annotated[int | None, Option(
        "Longest prefill chunk, in tokens. Default: 1536 for cuda, 512 for xnnpack.", PROGRAM, "N",
        least=1, most=65536)] = None  # fmt: skip
    max_batch_size: Annotated[int, Option(
        "Sequences that the KV caches hold.", PROGRAM, "B", least=1, most=128)] = 1  # fmt: skip
    kv_cache_dtype: Annotated[Literal["auto", "int8"], Option(
        "Dtype of stored keys and values. auto: the activations'. int8, with a scale for each head "
        "and token, is for cuda.", PROGRAM)] = "auto"  # fmt: skip
    cpu_weights: Annotated[Literal["float32", "int8", "int4"], Option(
        "Weights of xnnpack's linears. int8 and int4 quantize activations to INT8, too.",
        WEIGHTS)] = "float32"  # fmt: skip
    quantize: Annotated[Scheme | None, Option(
        "Quantize the target's dense linears to INT4.", WEIGHTS)] = None  # fmt: skip
    draft_quant: Annotated[Quant, Option("Quantize the head's linears.", WEIGHTS)] = "none"
    table_quant: Annotated[TableQuant, Option(
        "Quantize the target's output table. int8-lossless, for cuda, keeps the table as well: "
        "greedy rounds read the INT8 copy, and of the table what can win.",
        WEIGHTS)] = "none"  # fmt: skip
    inputs: Annotated[Literal["text", "text,image"], Option(
        "What prompts may contain.", IMAGES)] = "text"  # fmt: skip
    image_tokens: Annotated[tuple[int, ...] | None, Option(
        "Most tokens of an image: 70, 140, 280, 560 or 1120, or several of them, the default "
        "first. Default: the checkpoint's.", IMAGES, "N,...", commas=True)] = None  # fmt: skip
    check_only: Annotated[bool, Option(
        "Trace the methods and check their graphs, cuda's unless --backend is given. Lower and "
        "write nothing.", RUN, recorded=False)] = False  # fmt: skip
    no_self_test: Annotated[bool, Option(
        "Skip the self-test, which ranks readings of the head.", RUN)] = False  # fmt: skip
    self_test_prompts: Annotated[Path | None, Option(
        "Prompts of the self-test, a JSON Lines file.", RUN, recorded=False,
        shown=False)] = None  # fmt: skip
    jobs: Annotated[int, Option(
        "Processes that lower methods for cuda in parallel. xnnpack uses one.", RUN, "N", least=1,
        recorded=False)] = 1  # fmt: skip
    reproduce: Annotated[Path | None, Option(
        "Repeat a recorded export and report what differs.", RUN, "manifest.json",
        recorded=False)] = None  # fmt: skip
    push_to: Annotated[str | None, Option(
        "Publish the artifact on the Hugging Face Hub, with a model card; without --target-model "
        "the one in --output-dir. A repository is created as `hf upload` does.", RUN, "ORG/NAME",
        recorded=False)] = None  # fmt: skip
    as_json: Annotated[bool, Option(
        "Print the result of --reproduce or --check-only as JSON.", RUN, flag="--json",
        recorded=False)] = False  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        if self.tap_layers is not None:
            checked_tap_layers(self.tap_layers)
        check_weights(self)
        if self.image_tokens is not None and not self.reads_images:
            raise SettingError(f"--image-tokens goes with --inputs {TEXT_AND_IMAGES}")
        if self.no_self_test and self.self_test_prompts is not None:
            raise SettingError("self_test_prompts: --no-self-test skips the self-test")

    @property
    def is_dummy(self) -> bool:
        return self.load_format == DUMMY

    @property
    def has_head(self) -> bool:
        return self.drafter != NGRAM

    @property
    def reads_images(self) -> bool:
        return self.inputs == TEXT_AND_IMAGES


def check_weights(spec: ExportSpec) -> None:
    """Raise SettingError where formats of weights contradict the backend or each other."""
    if spec.cpu_weights == FLOAT32:
        return
    if spec.backend == CUDA:
        raise SettingError(
            f"--cpu-weights {spec.cpu_weights}: is for XNNPACK; leave it out for cuda, whose "
            "weights are INT4"
        )
    if spec.table_quant != NONE:
        raise SettingError(
            f"--table-quant {spec.table_quant}: --cpu-weights {spec.cpu_weights} makes the output "
            "table INT8 already: leave one of them out"
        )


def checked_tap_layers(taps: Sequence[int]) -> tuple[int, ...]:
    """Return `taps`. Raises SettingError unless they are distinct, ascending and not negative."""
    whole = all(type(tap) is int and tap >= 0 for tap in taps)
    if not taps or not whole or list(taps) != sorted(set(taps)):
        raise SettingError(f"--tap-layers {list(taps)}: expected distinct, ascending boundaries")
    return tuple(taps)
