"""All prompts of a run: from a file, from templates, and by the target itself."""

from collections.abc import Iterator, Sequence

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.prompts import is_ids, read_prompts
from eagle_aot.lab.training.heads.answers.writer import AnswerWriter, Asked
from eagle_aot.lab.training.heads.prompts.made import Conversation, made_conversations
from eagle_aot.lab.training.heads.prompts.tokens import encode_conversations
from eagle_aot.lab.training.heads.settings import Run

MARKER = "CONTENT"
OWN_TOKENS = 64
"""Of a user's turn that the target writes; longer ones are dropped."""
OWN_TEMPERATURE = 0.9
FEWEST_WORDS = 2


def collect_prompts(run: Run) -> list[list[int]]:
    """Distinct prompts as token ids, at least three, the user's first."""
    asked = run.prompting
    rows: list[list[int]] = []
    conversations: list[Conversation] = []
    if asked.jsonl is not None:
        for prompt in read_prompts(None, None, asked.jsonl):
            if isinstance(prompt, str):
                conversations.append([{"role": "user", "content": prompt}])
            elif is_ids(prompt):
                rows.append(prompt)
            else:
                raise PromptError(f"{asked.jsonl}: conversations are not trained on: name prompts")
    conversations += made_conversations(asked.count, run.seed)
    if asked.own:
        conversations += own_conversations(run, asked.own)
    rows += encode_conversations(conversations, run.tokenizer_dir, asked.longest)
    distinct = list(dict.fromkeys(tuple(row) for row in rows if len(row) <= asked.longest))
    if len(distinct) <= 2 * run.held_out:
        raise SettingError(
            f"{len(distinct)} prompts of at most {asked.longest} tokens are too few to hold out "
            f"{run.held_out}: ask for more --prompts or fewer --held-out"
        )
    return [list(row) for row in distinct]


def own_conversations(run: Run, count: int) -> Iterator[Conversation]:
    """What the target itself writes where a user would, sampled.

    Raises SettingError for a target without a chat template, or one that does not keep the turn's
    text as it is.
    """
    prefix = _until_the_user(run)
    writer = AnswerWriter(
        run.target,
        slots=min(run.answering.slots, count),
        longest_prompt=len(prefix),
        max_new_tokens=OWN_TOKENS,
        stop_ids=run.stop_ids,
        seed=run.seed,
    )
    asked = (Asked(number, prefix, OWN_TEMPERATURE) for number in range(count))
    written = [one for some in writer.write(asked) for one in some]
    for one in sorted(written, key=lambda one: one.asked.number):
        if text := _turn(run, one.answer):
            yield [{"role": "user", "content": text}]


def _until_the_user(run: Run) -> list[int]:
    """The chat template up to where the user's first turn begins."""
    tokenizer = run.tokenizer
    message = [{"role": "user", "content": MARKER}]
    text = tokenizer.render(message, add_generation_prompt=False) if tokenizer.has_template else ""
    if MARKER not in text:
        raise SettingError("--own-prompts: the target has no chat template to begin with")
    return tokenizer.ids(text.split(MARKER)[0], add_special_tokens=False)


def _turn(run: Run, ids: Sequence[int]) -> str:
    """The text of a turn that has ended; empty for any other and for a very short one."""
    if ids[-1] not in run.stop_ids or any(map(run.tokenizer.bytes_of.is_special, ids[:-1])):
        return ""
    text = run.tokenizer.decode(list(ids[:-1])).strip()
    return text if len(text.split()) >= FEWEST_WORDS else ""
