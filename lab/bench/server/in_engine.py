"""An artifact without a server: python -m server_bench.in_engine ARTIFACT

A request a line on stdin, an answer a line on stdout: `prompts` answered `batch_size` side by side,
each with the seed of its place, as `parameters` say.
"""

import json
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from eagle_aot.common.errors import EagleError
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.engine import Failed
from eagle_aot.runtime_runner.frontend.generation import Callbacks, generate_in_order
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.result import Result


def main(artifact: str) -> None:
    """Until there is nothing more to read."""
    runner = load_artifact(artifact)
    runner.adaptive_schedule(trees=False)  # as the server does
    runner.warm_up()
    print(json.dumps({"version": f"torch {version('torch')}"}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answered(runner, json.loads(line))), flush=True)


def answered(runner: Runner, request: dict[str, Any]) -> dict[str, Any]:
    """Texts, the seconds until their first tokens and of all, and where the engine's time went."""
    forwards = runner.engine.forwards
    before = vars(forwards).copy()
    started = time.perf_counter()
    results = list(answers(runner, **request))
    seconds = time.perf_counter() - started
    spent = {name: value - before[name] for name, value in vars(forwards).items()}
    return {
        "texts": [result.text for result in results],
        "tokens": sum(len(result.token_ids) for result in results),
        "first": [result.stats.prefill_seconds for result in results],
        "seconds": seconds,
        **spent,
    }


def answers(
    runner: Runner, prompts: list[str], batch_size: int, parameters: dict[str, Any]
) -> Iterator[Result]:
    """In their order. Raises EagleError for a forward that fails."""
    generations = (
        runner.generation(prompt, GenerationParams(seed=seed, **parameters), Callbacks())
        for seed, prompt in enumerate(prompts)
    )
    for found in generate_in_order(runner.engine, generations, batch_size):
        if isinstance(found, Failed):
            raise EagleError(found.error)
        yield found


if __name__ == "__main__":
    main(*sys.argv[1:])
