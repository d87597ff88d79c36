"""The sdist and the wheel, which are built once for all tests of packages."""

import pytest

from tests.packages.environments import build


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    return build(tmp_path_factory.mktemp("packages"))
