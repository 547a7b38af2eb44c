"""Programs that keep the contract, for tests that change one of them."""

import pytest

from support.graph_toy import Programs, good_programs


@pytest.fixture(scope="session")
def good() -> Programs:
    return good_programs()
