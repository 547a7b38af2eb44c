"""All prompts of a run, from a file and from templates."""

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.prompts import is_ids, read_prompts
from eagle_aot.lab.training.heads.prompts.made import Conversation, made_conversations
from eagle_aot.lab.training.heads.prompts.tokens import encode_conversations
from eagle_aot.lab.training.heads.run import Run


def collect_prompts(run: Run) -> list[list[int]]:
    """Return distinct prompts as token ids, the user's first.

    Raises SettingError where they are too few to hold any out.
    """
    spec = run.spec
    rows: list[list[int]] = []
    conversations: list[Conversation] = []
    if spec.prompts_jsonl is not None:
        for prompt in read_prompts(None, None, spec.prompts_jsonl):
            if isinstance(prompt, str):
                conversations.append([{"role": "user", "content": prompt}])
            elif is_ids(prompt):
                rows.append(prompt)
            else:
                raise PromptError(
                    f"{spec.prompts_jsonl}: conversations are not trained on: name prompts"
                )
    conversations += made_conversations(spec.prompts, spec.seed)
    rows += encode_conversations(conversations, run.tokenizer_dir, spec.longest_prompt)
    distinct = list(dict.fromkeys(tuple(row) for row in rows if len(row) <= spec.longest_prompt))
    if len(distinct) <= 2 * spec.held_out:
        raise SettingError(
            f"{len(distinct)} prompts of at most {spec.longest_prompt} tokens are too few to hold "
            f"{spec.held_out} out: use more --prompts or fewer --held-out"
        )
    return [list(row) for row in distinct]
