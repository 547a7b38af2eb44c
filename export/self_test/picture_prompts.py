"""The self-test's prompts, each with a picture that is made up."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch

from eagle_aot.common.errors import ArtifactError, PromptError
from eagle_aot.common.prompts import Message, Prompt
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.export.drafters.self_test.text import PicturePrompt
from eagle_aot.export.pair import Pair
from eagle_aot.export.self_test.drawings import drawing


def picture_prompts(
    pair: Pair, prompts: Sequence[Prompt], tokenizer: Tokenizer, limit: int, device: torch.device
) -> Iterator[PicturePrompt]:
    """Those that are text, behind a picture of at most `limit` rows; the pair is on `device`.

    Raises ArtifactError and PromptError where the tokenizer has no place for pictures.
    """
    assert pair.vision is not None and pair.picture_tokens is not None
    around = pair.picture_tokens
    for seed, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            continue
        ids = encoded(prompt, tokenizer, around.image)
        place, drawn = ids.index(around.image), drawing(pair.vision.config, limit, seed)
        with torch.no_grad():
            encode = pair.vision(drawn.pixels.to(device), drawn.places.to(device), False)
        run = [around.begin, *[around.image] * drawn.rows, around.end]
        tokens = [*ids[:place], *run, *ids[place + 1 :]]
        yield PicturePrompt(tokens, place + 1, encode[0, : drawn.rows], pair.sees_whole)


def encoded(prompt: str, tokenizer: Tokenizer, image: int) -> list[int]:
    """As one turn with an image token in front of the text: by a template that knows parts, or else
    with the token's word. Raises PromptError where neither gives one."""
    word = tokenizer.word(image)
    parts: Message = {
        "role": "user",
        "content": [{"type": "image"}, {"type": "text", "text": prompt}],
    }
    plain: Message = {"role": "user", "content": f"{word}{prompt}"}
    for turn in (parts, plain):
        with suppress(ArtifactError):  # of a template that takes no parts
            ids = tokenizer.encode([turn])
            if ids.count(image) == 1:
                return ids
    raise PromptError("the tokenizer has no place for a picture in a turn")
