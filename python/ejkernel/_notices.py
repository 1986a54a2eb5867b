"""What a user should hear, once per process: through the logger "ejkernel", on standard error unless the program says otherwise."""

import functools
import logging


@functools.cache
def say_once(text: str) -> None:
    logging.getLogger("ejkernel").warning(text)
