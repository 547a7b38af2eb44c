"""What a head drafts better from behind pictures."""

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from eagle_aot.artifact import tokenizer_files
from eagle_aot.common.errors import PromptError
from eagle_aot.common.self_test import PROMPTS
from eagle_aot.export import ExportOptions, Source, load_pair
from eagle_aot.export.drafters.eagle3.self_test.seeds import Seeds
from eagle_aot.export.drafters.self_test.score import Rounds, Score
from eagle_aot.export.drafters.self_test.text import continue_greedily
from eagle_aot.export.loading.load import LoadedPair
from eagle_aot.export.loading.tokenizer import convert_tokenizer
from eagle_aot.export.options import TEXT_AND_IMAGES
from eagle_aot.export.pipeline import run_self_test, seeded
from eagle_aot.export.self_test.drawings import drawing, drawn
from eagle_aot.export.self_test.picture_prompts import encoded, picture_prompts
from eagle_aot.runtime_runner.images.picture import Patches, Picture, Placed, PlacedPrompt
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.picture_pair import IMAGE, PROCESSOR, ROWS
from support.pictures import transformers_text

CPU = torch.device("cpu")


@pytest.fixture
def loaded(picture_pair: tuple[Path, Path]) -> LoadedPair:
    sizes = CacheSpec(320, torch.float32, chunk=ROWS)
    return load_pair(
        Source.find("auto", *picture_pair, "auto"), torch.float32, sizes, pictures=True
    )


def test_a_drawing_is_as_transformers_hands_pictures_over(loaded: LoadedPair) -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    assert loaded.pair.vision is not None
    config = loaded.pair.vision.config
    found = drawing(config, ROWS, seed=3)
    side = 8 * config.pooling_kernel_size * config.patch_size
    image = (drawn(side, seed=3).clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    ready = Gemma4ImageProcessorPil(**PROCESSOR["image_processor"])(
        Image.fromarray(image.numpy()), return_tensors="pt"
    )
    assert found.rows == int(ready["num_soft_tokens_per_image"][0]) == 64
    assert torch.equal(found.places, ready["image_position_ids"].long())
    torch.testing.assert_close(found.pixels, ready["pixel_values"], rtol=0, atol=1 / 255)
    assert not torch.equal(found.pixels, drawing(config, ROWS, seed=4).pixels)


def test_answers_behind_pictures_are_transformers_own(
    loaded: LoadedPair, picture_pair: tuple[Path, Path]
) -> None:
    target, config = loaded.pair.target, loaded.pair.vision
    assert config is not None
    tokenizer = convert_tokenizer(picture_pair[0])
    (prompt,) = picture_prompts(loaded.pair, [PROMPTS[4], [3, 4]], tokenizer, ROWS, CPU)
    text = continue_greedily(target, prompt, [1, 2], 12, (), CPU)
    drawing_ = drawing(config.config, ROWS, seed=0)
    picture = Picture.of_patches(64, Patches(drawing_.pixels, drawing_.places, ROWS))
    placed = PlacedPrompt(tuple(prompt.tokens), (Placed(picture, prompt.first),))
    found = text.tokens[0, text.start :].tolist()
    assert found == transformers_text(picture_pair[0], placed, 12)
    assert list(prompt.tokens).count(IMAGE) == 64 and text.picture is prompt


def test_rows_take_the_place_of_what_stands_for_them(
    loaded: LoadedPair, picture_pair: tuple[Path, Path]
) -> None:
    """One slot early, as the tokens that slots hold are."""
    tokenizer = convert_tokenizer(picture_pair[0])
    (prompt,) = picture_prompts(loaded.pair, PROMPTS[:1], tokenizer, ROWS, CPU)
    text = continue_greedily(loaded.pair.target, prompt, [1], 4, (), CPU)
    embedded = loaded.pair.draft.embed(text.tokens[:, 1 : text.slots + 1])
    shown = text.next_rows(embedded)
    here = slice(prompt.first - 1, prompt.first + 63)
    assert torch.equal(shown[0, here], prompt.rows)
    changed = (shown != embedded).any(-1)[0]
    assert changed[here].all() and changed.sum() == 64


def test_a_turn_without_a_place_for_a_picture(
    picture_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    for file in tokenizer_files(picture_pair[0]):
        shutil.copyfile(file, tmp_path / file.name)
    template = tmp_path / "chat_template.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    assert encoded("one", convert_tokenizer(tmp_path), IMAGE).count(IMAGE) == 1  # by its word
    template.write_text("none of it")
    with pytest.raises(PromptError, match="no place for a picture"):
        encoded("one", convert_tokenizer(tmp_path), IMAGE)


def scored(nats: torch.Tensor) -> Score:
    hits = nats < 1
    rounds = Rounds(1, 1, (1,), (0,))
    return Score(hits, nats, torch.ones_like(hits), torch.zeros(len(nats)).long(), rounds)


def test_rows_are_taken_where_they_are_clearly_better() -> None:
    nats = torch.rand(400, 4, generator=torch.Generator().manual_seed(0)) + 1
    for token, picture, better in (
        (nats, nats * 0.8, "picture"),
        (nats, nats * 0.99, "token"),
        (nats * 0.8, nats, "token"),
        (nats[:64], nats[:64] * 0.5, "token"),  # too few
    ):
        found = Seeds(prompts=10, token=scored(token), picture=scored(picture))
        assert found.better == found.to_json()["better"] == better
        left = ExportOptions(inputs=TEXT_AND_IMAGES)
        assert seeded(left, {"image_seeds": found.to_json()}).image_seed == better
    named = ExportOptions(inputs=TEXT_AND_IMAGES, image_seed="token")
    assert seeded(named, {"image_seeds": {"better": "picture"}}).image_seed == "token"
    assert seeded(ExportOptions(), None).image_seed == "token"


def test_the_self_test_tells_of_both(picture_pair: tuple[Path, Path]) -> None:
    """Of random weights neither is better."""
    source = Source.find("auto", *picture_pair, "auto")
    options = ExportOptions(backend="xnnpack", max_seq_len=320, inputs=TEXT_AND_IMAGES)
    verdict = run_self_test(source, options)
    found = verdict.to_json()["image_seeds"]
    assert found["better"] == "token" and found["prompts"] == len(PROMPTS)
    assert found["token"]["nats"] != found["picture"]["nats"]
    assert verdict.seeds is not None and "behind pictures tau is" in verdict.seeds.line
