"""A server on Ray that does not start is reported in one line."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from eagle_aot.common.errors import EagleError
from eagle_aot.runtime_runner.serve.spec import ServeSpec

pytest.importorskip("ray", reason="needs pip install 'eagle-aot[ray]'")

from ray.exceptions import RayError

from eagle_aot.runtime_runner.serve.on_ray import replicas as on_ray


def test_ray_replaces_a_replica_whose_engine_has_failed() -> None:
    replica = on_ray.Replica.__new__(on_ray.Replica)
    replica._service = SimpleNamespace(failure=None)  # type: ignore[assignment]
    replica.check_health()
    replica._service = SimpleNamespace(failure="its thread has ended")  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match=r"^its thread has ended$"):
        replica.check_health()


@pytest.mark.parametrize("kind", [RuntimeError, TimeoutError, RayError])
def test_an_error_is_one_line(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **options: object) -> None:
        raise kind("ray::ProxyActor\n  File ...\nRuntimeError: Failed to bind.\n")

    monkeypatch.setattr("ray.serve.start", fail)
    monkeypatch.setattr("ray.serve.run", fail)
    spec = ServeSpec(artifact=Path("a"), port=80)
    settings = on_ray.ReplicaSettings(spec=spec, keys=(), gpus=0, slots=1)
    line = "^127.0.0.1:80: Ray cannot serve there, as the log says: RuntimeError: Failed to bind.$"
    with pytest.raises(EagleError, match=line):
        on_ray.deploy(settings)
