"""`eagle-bench --part prefix`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_aot.lab.bench.prefix import main, random_prompts


def test_prompts_share_their_prefix_alone() -> None:
    prompts = random_prompts(3, 20, 5, 1000)
    assert all(prompt[:20] == prompts[0][:20] for prompt in prompts)
    assert len({tuple(prompt[20:]) for prompt in prompts}) == 3


@pytest.mark.artifact
def test_reuse_caches_the_prefix_and_changes_no_token(batch_artifact: Path) -> None:
    chosen = ["--requests", "4", "--prefix", "100", "--max-new-tokens", "4", "--repeats", "1"]
    done = CliRunner().invoke(main, [str(batch_artifact), *chosen, "--json"])
    assert done.exit_code == 0, done.output
    without, with_reuse = json.loads(done.stdout)["lines"]
    assert (without["reuse"], without["cached_tokens"]) == (False, 0)
    assert (with_reuse["reuse"], with_reuse["cached_tokens"]) == (True, 3 * 99)
    assert with_reuse["tokens"] == without["tokens"]
    shown = CliRunner().invoke(main, [str(batch_artifact), *chosen])
    assert shown.exit_code == 0 and "cached" in shown.stdout
    refused = CliRunner().invoke(main, [str(batch_artifact), "--prefix", "100000"])
    assert refused.exit_code == 1
