"""A jaxlib that is too old is named when the package is imported, not at the first call."""

OLDEST = (0, 9, 1)  # the first whose XLA has version 0.3 of the FFI that our handlers were built with


def check_jax() -> None:
    text = ".".join(map(str, OLDEST))
    try:
        from jaxlib import version
    except ImportError as error:
        raise ImportError(f"ejkernel needs jax {text} or newer, found none; pip install 'jax>={text}'") from error
    found = tuple(int(part) for part in version.__version__.split(".")[:3] if part.isdigit())
    if found < OLDEST:
        raise ImportError(
            f"ejkernel needs jaxlib {text} or newer, found {version.__version__}; pip install -U 'jax>={text}'"
        )
