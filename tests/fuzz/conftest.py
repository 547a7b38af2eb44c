"""`pytest tests/fuzz --hypothesis-profile=campaign`: minutes of damage instead of seconds."""

from hypothesis import settings

from fuzz.campaign import CAMPAIGN

settings.register_profile("campaign", CAMPAIGN)
