"""An engine on a CPU as it is on a GPU."""

from eagle_aot.runtime_runner.engine import Engine


class Waiting(Engine):
    """As if forwards ran elsewhere: there is time to think while they do."""

    waits = True
