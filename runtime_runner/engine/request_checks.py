"""Checks a request before anything is run."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from eagle_aot.artifact import Constants
from eagle_aot.common.errors import ContextLengthError, PromptError, SettingError
from eagle_aot.runtime_runner.decode.shape import (
    AUTO,
    ChainLen,
    Shape,
    Tree,
    check_tree,
    parse_tree,
)


def check_prompt(ids: Sequence[int], constants: Constants) -> None:
    """Raise PromptError unless the ids are in the vocabulary and the context has one more slot."""
    context, vocab = constants.max_seq_len, constants.vocab_size
    if not ids:
        raise PromptError("the prompt is empty")
    if not all(type(i) is int for i in ids):
        raise PromptError("prompt ids must be integers")
    if len(ids) >= context:
        raise ContextLengthError(
            f"the prompt has {len(ids)} tokens and the context {context}: shorten the prompt "
            "or export with a larger --max-seq-len"
        )
    if not 0 <= min(ids) <= max(ids) < vocab:
        raise PromptError(f"prompt ids {min(ids)}..{max(ids)} leave the vocabulary of {vocab}")


def chosen_batch_size(batch_size: int | None, constants: Constants) -> int:
    """Return the number of requests in parallel, by default as many as the artifact has caches for.
    Raises SettingError for another number than it has."""
    most = constants.max_batch_size
    if batch_size is not None and batch_size < 1:
        raise SettingError(f"batch size {batch_size}: must be at least 1")
    if batch_size is not None and batch_size > most:
        raise SettingError(
            f"batch size {batch_size}: this artifact has caches for {most} "
            f"{'sequence' if most == 1 else 'sequences'}: export with a larger --max-batch-size"
        )
    return batch_size or most


def chosen_chain_len(chain_len: ChainLen | None, constants: Constants) -> ChainLen:
    """Return the chain length, by default the artifact's. Raises SettingError if it is too long."""
    if chain_len == AUTO:
        return AUTO
    longest = constants.tail - 1
    chosen = constants.chain_len if chain_len is None else chain_len
    if not 1 <= chosen <= longest:
        raise SettingError(f"chain length {chosen}: this artifact takes 1 to {longest}")
    return chosen


def chosen_tree(tree: Tree, drafter: str, grows_trees: bool, constants: Constants) -> Shape:
    """Read the requested tree. Raises SettingError if artifact or drafter does not take it."""
    shape = shape_of(tree)
    check_tree(shape, constants.tail - 1, constants.max_rows, constants.max_seq_len)
    if not shape.is_chain:
        check_grows_trees(shape, drafter, grows_trees)
    return shape


def check_grows_trees(tree: object, drafter: str, grows_trees: bool) -> None:
    """Raise SettingError if the drafter proposes chains only."""
    if not grows_trees:
        raise SettingError(f"tree {tree}: drafter {drafter!r} proposes chains: name a chain length")


def shape_of(tree: Tree) -> Shape:
    """Read a tree in any spelling. Raises SettingError for anything else."""
    if isinstance(tree, Shape):
        return tree
    if isinstance(tree, str | Path):
        return parse_tree(str(tree))
    sizes = tree if isinstance(tree, tuple | list) else ()
    if len(sizes) != 3 or not all(type(size) is int for size in sizes):
        raise SettingError(f"tree {tree!r}: expected (depth, top-k, nodes), or a file of paths")
    return Shape(*sizes)


def all_stop_ids(
    stop_ids: Iterable[int], constants: Constants, *, ignore_eos: bool = False
) -> frozenset[int]:
    """Return these stop ids and, unless they are ignored, the artifact's own.

    Raises SettingError for an id outside the vocabulary.
    """
    requested = list(stop_ids)
    for stop in requested:
        if not 0 <= stop < constants.vocab_size:
            raise SettingError(
                f"stop id {stop} is outside the vocabulary of {constants.vocab_size}"
            )
    return frozenset((*(() if ignore_eos else constants.eos_ids), *requested))
