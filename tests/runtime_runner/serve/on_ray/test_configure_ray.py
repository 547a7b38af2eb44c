"""Ray's settings: those of a cluster are its own."""

import os
import sys
from unittest import mock

import pytest

from eagle_aot.runtime_runner.serve.on_ray import LOOPBACK, configure_ray

SECURE = {LOOPBACK: "0", "RAY_AUTH_MODE": "token", "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {**SECURE, "RAY_AUTH_TOKEN": None}),
        ({"RAY_AUTH_TOKEN": "ours"}, {**SECURE, "RAY_AUTH_TOKEN": "ours"}),
        ({"RAY_AUTH_TOKEN_PATH": "a"}, {**SECURE, "RAY_AUTH_TOKEN_PATH": "a"}),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "a"},
         {**SECURE, "RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "a"}),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, {"RAY_ADDRESS": "10.0.0.1:6379"}),
    ],
)  # fmt: skip
def test_ray_is_configured_unless_a_cluster_is_named(
    before: dict[str, str], after: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with mock.patch.dict(os.environ, before, clear=True):
        configure_ray()
        settings = dict(os.environ)
    drawn = {name for name, value in after.items() if value is None}
    assert settings.keys() == after.keys()
    assert all(len(settings[name]) == 64 for name in drawn)
    assert all(settings[name] == after[name] for name in after.keys() - drawn)
