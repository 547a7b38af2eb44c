"""Some of a server's clients, in a process beside it: python -m server_bench.asker URL

A request a line on stdin: for each client the `texts` that it asks for, one after the other, with
the `words` that all requests have in common. The answer is a line on stdout. Times are those of
`time.perf_counter`, which all processes of a machine share.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai import OpenAI

PATIENCE = 600.0  # seconds


def main(url: str) -> None:
    """Until there is nothing more to read."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
    (model,) = (model.id for model in client.models.list().data)
    print(json.dumps({"version": model}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        started = time.process_time()
        with ThreadPoolExecutor(len(asked["clients"])) as pool:
            words = {"model": model, **asked["words"]}
            of_each = pool.map(lambda texts, words=words: ask(client, texts, words),
                               asked["clients"])  # fmt: skip
            answers = [answer for answers in of_each for answer in answers]
        spent = time.process_time() - started
        print(json.dumps({"answers": answers, "cpu_seconds": spent}), flush=True)


def ask(client: OpenAI, texts: list[dict[str, Any]], words: dict[str, Any]) -> list[dict[str, Any]]:
    """One client's, each a `number`, which is its seed, and a `prompt`."""
    return [answered(client, words, **text) for text in texts]


def answered(client: OpenAI, words: dict[str, Any], number: int, prompt: str) -> dict[str, Any]:
    """The text, and when its parts came."""
    asked: dict[str, Any] = {**words, "messages": [{"role": "user", "content": prompt}]}
    text, tokens, times = "", 0, list[float]()
    started = time.perf_counter()
    chunks = client.chat.completions.create(
        **asked, seed=number, stream=True, stream_options={"include_usage": True}
    )
    for chunk in chunks:
        tokens = chunk.usage.completion_tokens if chunk.usage else 0
        for choice in chunk.choices:
            if choice.delta.content:
                text += choice.delta.content
                times.append(time.perf_counter())
    return {"number": number, "text": text, "tokens": tokens, "started": started, "times": times,
            "ended": time.perf_counter()}  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
