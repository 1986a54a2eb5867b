"""What builds the wheel for pip (pyproject.toml): scikit-build-core, and the tag that the wheel's programs allow."""

from pathlib import Path

import tag
from scikit_build_core.build import *  # noqa: F403  the other hooks are its own
from scikit_build_core.build import build_wheel as build_local_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    wheel = Path(wheel_directory) / build_local_wheel(wheel_directory, config_settings, metadata_directory)
    try:
        return tag.retag(wheel).name
    except ValueError as error:  # built on a newer system, and as good there as any
        print(f"{error}; it keeps the tag of this system")
        return wheel.name
