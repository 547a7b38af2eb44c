"""How many cases: a few seconds of the same ones in every run of the tests, many new ones in a
campaign, which `--hypothesis-profile=campaign` runs."""

from hypothesis import HealthCheck, settings

ANY = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
CAMPAIGN = settings(max_examples=1000, deadline=None, suppress_health_check=ANY)
SUITE = settings(CAMPAIGN, derandomize=True, database=None)


def is_campaign() -> bool:
    """Return whether the profile is set, which is known once conftest.py has been read."""
    return settings.default is CAMPAIGN


def cases(suite: int, campaign: int) -> settings:
    """Return the settings of a test: how many cases it has in every run, and in a campaign."""
    if is_campaign():
        return settings(CAMPAIGN, max_examples=campaign)
    return settings(SUITE, max_examples=suite)
