"""Eight CPU devices; and with EJKERNEL_TEST_PART=each_once, every function with each value of its parameters once."""

import os

import pytest

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = os.environ.get("EJKERNEL_TEST_PART", "all")
    if part == "all":
        return
    assert part == "each_once", part
    chosen = _each_once(items)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def _each_once(items: list[pytest.Item]) -> set[pytest.Item]:
    """Seeds are no values: any will do. Tests of nothing but new values come first: of a grid its diagonal, then what the
    diagonal leaves out."""
    met = set()
    chosen = set()
    for enough in (all, any):
        for item in items:
            values = _values(item)
            if item not in chosen and enough(value not in met for value in values):
                chosen.add(item)
                met |= values
    return chosen


def _values(item: pytest.Item) -> set[tuple]:
    """The function with each parameter and its value."""
    function = item.nodeid.split("[")[0]
    params = item.callspec.params if hasattr(item, "callspec") else {}
    values = {(function, name, _key(value)) for name, value in params.items() if name != "seed"}
    return values or {(function,)}


def _key(value: object) -> object:
    return value if isinstance(value, str | int | float | None) else id(value)
