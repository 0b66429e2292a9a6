"""Settings, checked without a GPU."""

from __future__ import annotations

import ctypes

from . import _library, errors


def encoded(config: str) -> bytes:
    """Returns settings as the C functions take them. A NUL would end the text there."""
    if not isinstance(config, str):
        raise TypeError(f"the settings must be a str, not {type(config).__name__}")
    if "\0" in config:
        raise errors.ConfigurationError(f"the settings {config!r} contain a NUL")
    try:
        return config.encode()
    except UnicodeEncodeError:
        raise errors.ConfigurationError(f"the settings {config!r} are not text that UTF-8 can encode") from None


def check(config: str) -> None:
    """Checks settings such as ``"policy:caching,expandable_segments:True"``, and changes nothing.
    Needs no GPU and no
    PyTorch: the settings are given to an allocator for a simulated device, which is destroyed at
        once.

    Raises:
        ConfigurationError: the settings have a mistake. The text names the mistake, and lists what
            is accepted.
        TypeError: the settings are not a ``str``.
    """
    library, handle = _library.library(), ctypes.c_void_p()
    options = _library.Options(
        struct_size=ctypes.sizeof(_library.Options), flags=_library.SIMULATED, config=encoded(config)
    )
    library.cachalot_create(ctypes.byref(options), ctypes.byref(handle))
    library.cachalot_destroy(handle)
