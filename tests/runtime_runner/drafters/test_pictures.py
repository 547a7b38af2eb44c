"""Heads that draft blocks, after prompts with pictures: they read the target's features of a
picture's rows, and no text depends on what they draft."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from eagle_aot.artifact import PREFILL, ImageInputs
from eagle_aot.export import ExportSpec, Pair, load_pair, resolve_checkpoints
from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.export.drafters.dflash2 import kind as dflash2
from eagle_aot.export.drafters.dspark import kind as dspark
from eagle_aot.export.methods import PrefillEmbedsMethod
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.drafters.dflash import DFlashDrafter
from eagle_aot.runtime_runner.drafters.dflash2 import DFlash2Drafter
from eagle_aot.runtime_runner.drafters.dspark import DSparkDrafter
from eagle_aot.runtime_runner.images.prompt_image import PlacedImage, PromptImage
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.step import ChunkEmbeds, PromptChunk, chain_step
from support.image_pair import BEGIN, END, IMAGE, NEVER
from support.runner.eager_executor import EagerExecutor

PICTURE, LENGTH, TAIL, COUNT = 20, 40, 16, 16
FIRST = torch.zeros(1, dtype=torch.int64)
CACHES = CacheSpec(320, torch.float32, chunk=96)


class Pictures:
    """A random head with a target that reads pictures, and a prompt with one."""

    def __init__(self, kind: ModuleType, files: tuple[Path, Path]) -> None:
        torch.manual_seed(1)
        spec = ExportSpec(target_model="auto", target_dir=files[0], draft_dir=files[1])
        checkpoints = resolve_checkpoints(spec)
        loaded = load_pair(checkpoints, torch.float32, CACHES, images=True).pair
        self.head: DFlashDraft
        self.head, _ = kind.without_checkpoint(
            checkpoints.target, loaded.target, torch.float32, CACHES
        )
        self.pair = Pair(loaded.target, self.head)
        self.executor = EagerExecutor(self.pair)
        self.executor.methods[PREFILL] = PrefillEmbedsMethod(self.pair)
        images = ImageInputs(
            rows=[PICTURE], hidden_size=loaded.target.hidden_size, patch_size=4, pooling=3,
            image_token=IMAGE, begin_token=BEGIN, end_token=END, never=NEVER, sees_whole=True,
            drafter_reads_images=False,
        )  # fmt: skip
        self.target = TargetMethods(self.executor, self.executor.artifact, images=images)
        rows = torch.randn(PICTURE, loaded.target.hidden_size)
        self.image = PlacedImage(PromptImage.of_rows(rows, rows.shape[1]), 6)
        first, end = self.image.span
        self.prompt = torch.randint(3, 200, (LENGTH,)).tolist()
        self.prompt[first - 1 : end + 1] = [BEGIN, *[IMAGE] * PICTURE, END]

    def begin(self, drafter: DFlashDrafter | None) -> Tensor:
        """Run the prompt; return the token after it, int64 [1, 1]."""
        self.pair.reset_cache()
        run = Prefill(self.target, drafter, self.prompt, FIRST, images=[self.image])
        while run.left:
            bonus = run.run_chunk()
        return bonus

    def decode(self, drafter: DFlashDrafter | None, shape: Shape) -> list[int]:
        """Return the first tokens of the answer."""
        batch = BatchState([0], TAIL, "cpu")
        batch.place(bonus := self.begin(drafter), LENGTH)
        text, round_ = [int(bonus)], Round(self.target, drafter, shape, batch)
        self.accepted = 0
        while len(text) < COUNT:
            (outcome,) = round_.outcomes(round_.run())
            self.accepted += outcome.accepted
            text += outcome.tokens[: outcome.accepted + 1]
        return text[:COUNT]


def drafter_of(kind: ModuleType, pictures: Pictures) -> DFlashDrafter:
    executor, rows = pictures.executor, pictures.head.config.block_size
    if kind is dflash2:
        return DFlash2Drafter(executor, executor.artifact, None, rows, 16)
    return DSparkDrafter(executor, executor.artifact, None, rows, 1, is_confident=True)


@pytest.mark.parametrize("kind", [dflash2, dspark], ids=["dflash2", "dspark"])
@torch.no_grad()
def test_a_block_follows_from_the_features_of_a_pictures_rows(
    kind: ModuleType, image_pair: tuple[Path, Path]
) -> None:
    """As the modules compute it in one chunk; not from those of its placeholders."""
    pictures = Pictures(kind, image_pair)
    drafter, head = drafter_of(kind, pictures), pictures.head
    bonus = pictures.begin(drafter)
    found = drafter._block(bonus, torch.tensor([LENGTH]), FIRST, 7)[0]
    tokens, places = torch.tensor([pictures.prompt]), torch.arange(LENGTH)
    first, end = pictures.image.span
    embeddings = torch.zeros(1, LENGTH, pictures.pair.target.hidden_size)
    visible = torch.full((LENGTH,), -1)
    content = pictures.image.image.content
    assert isinstance(content, Tensor)
    embeddings[0, first:end], visible[first:end] = content, end - 1
    for embeds, near in ((ChunkEmbeds(embeddings, visible), True), (None, False)):
        pictures.pair.reset_cache()
        _, taps = pictures.pair.target.run(tokens, PromptChunk(places, FIRST, embeds=embeds))
        head.store(head.fuse(taps), chain_step(places))
        block = torch.arange(LENGTH, LENGTH + head.config.block_size)
        wanted = head.run(bonus.expand(1, len(block)), chain_step(block))[:, 1:8]
        assert ((found - wanted).abs().max() < 1e-4) == near


def knowing(drafter: DFlashDrafter, text: list[int]) -> DFlashDrafter:
    """Return the drafter, which now drafts in every other round three tokens of `text` first."""
    propose, rounds, methods = drafter.propose, count(), cast(Any, drafter)

    def proposed(batch: BatchState, shape: Shape) -> Draft:
        draft, place = propose(batch, shape), int(batch.position) - LENGTH + 1
        known = torch.tensor([text[place : place + 3]])
        if next(rounds) % 2 or not known.numel():
            return draft
        return replace(draft, tokens=torch.cat((known, draft.tokens[:, known.shape[1] :]), dim=1))

    methods.propose = proposed
    return drafter


@pytest.mark.parametrize("kind", [dflash2, dspark], ids=["dflash2", "dspark"])
@torch.no_grad()
def test_drafts_change_no_token_after_a_picture(
    kind: ModuleType, image_pair: tuple[Path, Path]
) -> None:
    """Whether they are accepted or not."""
    pictures = Pictures(kind, image_pair)
    plain = pictures.decode(None, Shape.chain(0))
    assert not set(plain) & set(NEVER)
    for shape in (Shape.chain(7), Shape(6, 3, 12)):
        assert pictures.decode(drafter_of(kind, pictures), shape) == plain
    right = knowing(drafter_of(kind, pictures), plain)
    assert pictures.decode(right, Shape.chain(7)) == plain
    assert pictures.accepted >= 6
