"""`pytest tests/fuzz --hypothesis-profile=campaign`: minutes of damage instead of a second."""

from hypothesis import HealthCheck, settings

ANY = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]

settings.register_profile("campaign", max_examples=1000, deadline=None, suppress_health_check=ANY)
settings.register_profile(
    "suite", settings.get_profile("campaign"), max_examples=12, derandomize=True, database=None
)
