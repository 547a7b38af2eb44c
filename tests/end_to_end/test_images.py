"""Images in prompts, from files to tokens through a real `.pte`."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from eagle_aot.artifact import Manifest
from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.prompts import Message, MessagePart, user
from eagle_aot.export import ExportSpec, load_pair, resolve_checkpoints
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.runtime_runner import Conversation, Runner
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.images.prompt_image import ImagePatches
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.step import ChunkEmbeds, PromptChunk
from support.golden_cases import relative_error
from support.image_pair import BEGIN, END, IMAGE, NEVER, PLACEHOLDER, ROWS
from support.images import drawn, stored, transformers_text
from support.refusals import refuses

TEXT = "What is this?"
TWO = f"Is {PLACEHOLDER} older than {PLACEHOLDER}, or not? Say it in a few words, and why."
COUNT = 20


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of images: one has the most rows, one fewer; both are longer than a window."""
    directory = tmp_path_factory.mktemp("images")
    found = []
    for i, (size, kind) in enumerate([((100, 80), "PNG"), ((60, 150), "WEBP")]):
        found.append(directory / f"{i}.{kind.lower()}")
        options = {"lossless": True} if kind == "WEBP" else {}
        found[-1].write_bytes(stored(drawn(*size, seed=i), kind, **options))
    return found


def test_an_image_is_answered_as_transformers_does(
    image_runner: Runner, image_pair: tuple[Path, Path], files: list[Path]
) -> None:
    """One image, which is all that `prefill` runs, and two, which lie in two chunks."""
    for prompt, images in ((TEXT, files[:1]), (TEXT, files[1:]), (TWO, files)):
        read = image_runner.reader.read(prompt, images=images)
        wanted = transformers_text(image_pair[0], read, COUNT)
        result = image_runner.generate(prompt, COUNT, speculate=False, images=images)
        assert result.token_ids == wanted
        assert result.prompt_tokens == len(read.tokens)
    other = image_runner.generate(TEXT, COUNT, speculate=False, images=files[1:])
    assert other.token_ids != image_runner.generate(TEXT, COUNT, images=files[:1]).token_ids


def test_drafts_chunks_and_neighbours_change_no_token(
    image_runner: Runner, files: list[Path]
) -> None:
    runner = image_runner
    for prompt, images in ((TEXT, files[:1]), (TWO, files)):
        read = runner.reader.read(prompt, images=images)
        plain = runner.generate(read, COUNT, speculate=False).token_ids
        assert not set(plain) & set(NEVER)
        for chain_len in (1, 4, 7):
            assert runner.generate(read, COUNT, chain_len).token_ids == plain
        for tree in ((3, 2, 6), (6, 4, 24)):
            assert runner.generate(read, COUNT, tree=tree).token_ids == plain
        sampled: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 3}
        wanted = runner.generate(read, COUNT, speculate=False, **sampled).token_ids
        assert runner.generate(read, COUNT, 5, **sampled).token_ids == wanted != plain
    prompts = [runner.reader.read(TWO, images=files), runner.reader.read("Tom has 3 pens. " * 9)]
    prompts.append(runner.reader.read(TEXT, images=files[:1]))
    alone = [runner.generate(one, COUNT, speculate=False).token_ids for one in prompts]
    together = runner.generate_many(prompts * 2, max_new_tokens=COUNT, reuse=True)
    assert [getattr(one, "token_ids", one) for one in together] == alone * 2


def test_rows_of_an_image_are_reused_for_the_same_image_alone(
    image_runner: Runner, files: list[Path]
) -> None:
    runner = image_runner
    first = runner.reader.read(TEXT, images=files[:1])
    longer = runner.reader.read(f"{TEXT} And what is it for, do you think?", images=files[:1])
    another = runner.reader.read(TEXT, images=[stored(drawn(100, 80, seed=9))])
    assert first.tokens == another.tokens
    wanted = {one: runner.generate(one, COUNT, speculate=False) for one in (first, longer, another)}
    runner.generate(first, COUNT)
    again = runner.generate(longer, COUNT, reuse=True)
    assert again.cached_tokens >= first.spans[0][1]
    assert again.token_ids == wanted[longer].token_ids
    runner.generate(first, COUNT)
    changed = runner.generate(another, COUNT, reuse=True)
    assert changed.cached_tokens < first.spans[0][0]
    assert changed.token_ids == wanted[another].token_ids != wanted[first].token_ids


def test_a_conversation_shows_images(image_runner: Runner, files: list[Path]) -> None:
    conversation = Conversation(image_runner)
    conversation.say("See here.", COUNT, images=files[:1])
    answer = conversation.say("And this one?", COUNT, images=files[1:])
    assert answer.cached_tokens > ROWS // 2
    whole = image_runner.generate(conversation.messages[:-1], COUNT, speculate=False)
    assert whole.token_ids == answer.token_ids


def test_rows_of_another_encoder_stand_for_an_image(
    image_runner: Runner, files: list[Path]
) -> None:
    runner = image_runner
    read = runner.reader.read(TEXT, images=files[:1])
    (placed,) = read.images
    content = placed.image.content
    assert isinstance(content, ImagePatches)
    (rows,) = runner.executor.run(f"encode_image_{ROWS}", content.pixels, content.positions)
    given = rows[0, : placed.image.count]
    plain = runner.generate(read, COUNT, speculate=False).token_ids
    assert runner.generate(TEXT, COUNT, images=[given]).token_ids == plain
    for wrong in (given[:, 1:], given * float("nan"), given.long(), given[:0], given[0]):
        with pytest.raises(PromptError, match="embeddings of an image"):
            runner.generate(TEXT, images=[wrong])
    with pytest.raises(
        PromptError, match="an image of 97 rows: a chunk of a prompt has 96 at most"
    ):
        runner.generate(TEXT, images=[torch.zeros(97, 64)])


def test_a_head_observes_the_rows_of_an_image_one_slot_early(
    image_runner: Runner, image_pair: tuple[Path, Path], files: list[Path]
) -> None:
    """Compares the program with the modules, in one chunk."""
    runner, read = image_runner, image_runner.reader.read(TEXT, images=files[:1])
    where = torch.zeros(1, dtype=torch.int64)
    run = Prefill(runner.target, runner.drafter, read.tokens, where, images=read.images)
    while run.left:
        bonus = run.run_chunk()
    assert isinstance(runner.drafter, Eagle3Drafter)
    found = runner.drafter.logits(where)
    checkpoints = resolve_checkpoints(
        ExportSpec(target_model="auto", target_dir=image_pair[0], draft_dir=image_pair[1])
    )
    pair = load_pair(
        checkpoints, torch.float32, CacheSpec(320, torch.float32, chunk=96), images=True
    ).pair
    assert isinstance(pair.draft, Eagle3Draft)
    given = runner.target.input_embeds(Chunk(0, len(read.tokens), False), read.images)
    tokens, places = torch.tensor([read.tokens]), torch.arange(len(read.tokens))
    following = torch.cat((tokens, bonus), dim=1)[:, 1:]
    with torch.no_grad():
        _, taps = pair.target.run(tokens, PromptChunk(places, where, embeds=ChunkEmbeds(*given)))
        plain = pair.draft.embed(following)
        rows = torch.cat((given.embeddings[:, 1:], plain[:, -1:]), dim=1)
        shown = torch.cat((given.last_visible[1:] >= 0, torch.tensor([False])))
        for seeds, near in ((torch.where(shown[:, None], rows, plain), True), (plain, False)):
            pair.draft.reset_cache()
            wanted, _ = pair.draft.forward_cached(seeds, pair.draft.fuse(taps), places)
            assert (relative_error(found, wanted[:, -1:]) < 5e-3) == near


def test_images_stand_where_a_prompt_has_them(image_runner: Runner, files: list[Path]) -> None:
    reader = image_runner.reader
    read = reader.read(TWO, images=files)
    for start, end in read.spans:
        assert read.tokens[start - 1] == BEGIN and read.tokens[end] == END
        assert set(read.tokens[start:end]) == {IMAGE}
    turn: list[MessagePart] = [{"type": "image", "image": files[0]}, {"type": "text", "text": TEXT}]
    assert reader.read([user(turn)]).keys == reader.read(TEXT, images=files[:1]).keys
    raw = reader.read(TEXT, raw=True, images=files[:1])
    ids = [*raw.tokens[:1], IMAGE, *raw.tokens[raw.spans[0][1] + 1 :]]
    assert reader.read(ids, images=files[:1]).keys[1:] == raw.keys[1:]
    for prompt in (f"{PLACEHOLDER} {TWO}", f"{TEXT} {PLACEHOLDER}"):
        with pytest.raises(PromptError, match="give images as parts of the message"):
            reader.read(prompt, images=files)
    with pytest.raises(PromptError, match="1 image tokens, and 0 images are given"):
        reader.read(f"{TEXT} {PLACEHOLDER}")
    answer: Message = {"role": "assistant", "content": "?"}
    shown: list[MessagePart] = [{"type": "image", "image": file} for file in files]
    said: MessagePart = {"type": "text", "text": TWO}
    assert reader.read([user([*shown, said])]).keys == read.keys
    for content in ([*shown[:1], said], [said, *shown], [*shown, said, said]):
        with pytest.raises(PromptError, match="give images as parts of the message"):
            reader.read([user(content)])
    with pytest.raises(PromptError, match="give images as parts of the message"):
        reader.read([user(TWO), answer, user([*shown])])
    with pytest.raises(PromptError, match="stands for video or audio"):
        reader.read("a <|video|>")
    with pytest.raises(PromptError, match="65 images: a prompt takes 64 at most"):
        reader.read(TEXT, images=["nowhere.png"] * 65)
    nowhere: MessagePart = {"type": "image", "image": "nowhere.png"}
    with pytest.raises(PromptError, match="65 images"):
        reader.read([user([nowhere] * 65)])
    with pytest.raises(SettingError, match="--image-tokens 280: this artifact's images have 70"):
        reader.read(TEXT, images=files, image_tokens=280)


def test_commands_take_images(
    image_runner: Runner, image_artifact: Path, files: list[Path], tmp_path: Path
) -> None:
    plain = [image_runner.generate(TEXT, COUNT, images=[one]).token_ids for one in files]
    options = ["--prompt", TEXT, "--max-new-tokens", str(COUNT), "--json", "--image"]
    one = run(image_artifact, *options, files[0])
    assert one.exit_code == 0, one.output
    assert json.loads(one.stdout)["token_ids"] == plain[0]
    lines = [
        {"prompt": TEXT, "images": [str(files[0])]},
        {"prompt": TWO, "images": [str(one) for one in files]},
        {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": data_url(files[1])}},
            {"type": "text", "text": TEXT},
        ]}]},
    ]  # fmt: skip
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    both = run(image_artifact, "--prompts-jsonl", prompts, *options[2:-1], "--batch-size", "2")
    assert both.exit_code == 0, both.output
    two = image_runner.generate(TWO, COUNT, images=files).token_ids
    found = [json.loads(line)["token_ids"] for line in both.stdout.splitlines()[:3]]
    assert found == [plain[0], two, plain[1]]
    turns = f"/image {files[0]}\n{TEXT}\n/image nowhere.png\n/exit\n"
    chat = CliRunner().invoke(main, [str(image_artifact), "--chat", *options[2:-1]], input=turns)
    assert json.loads(chat.stdout.splitlines()[0])["token_ids"] == plain[0]
    assert "nowhere.png: cannot be read" in chat.stderr
    refuses(run(image_artifact, *options, prompts), "not an image in PNG, JPEG, WEBP")


def test_an_artifact_of_text_refuses_images_in_one_line(
    batch_artifact: Path, files: list[Path]
) -> None:
    refused = run(batch_artifact, "--prompt", TEXT, "--image", files[0])
    refuses(refused, "reads text alone: export with --inputs text,image")
    assert "images" not in Manifest.read(batch_artifact).to_json()


def data_url(file: Path) -> str:
    """Return an address that contains a file."""
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
