"""Half of the tests, where EJKERNEL_TEST_HALF is 0 or 1: which one a test is in hangs on its name alone."""

import os
import zlib

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    half = os.environ.get("EJKERNEL_TEST_HALF")
    if half is None:
        return
    others = [item for item in items if zlib.crc32(item.name.encode()) % 2 != int(half)]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)
