"""What a user should hear, once per process: through the logger "ejkernel", by default on standard error."""

import functools
import logging


@functools.cache
def say_once(text: str) -> None:
    logging.getLogger("ejkernel").warning(text)
