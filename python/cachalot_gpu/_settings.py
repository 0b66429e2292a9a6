"""Settings, checked without a GPU."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from . import _library, _warning, errors

DISABLE = "CACHALOT_DISABLE"
"""The variable of the environment by which an operator keeps cachalot out of a process."""


def disabled() -> bool:
    """Returns whether the environment keeps cachalot out of the process: ``CACHALOT_DISABLE`` is
    set, and neither empty nor ``0``."""
    return os.environ.get(DISABLE, "") not in ("", "0")


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


def notes(config: str | None) -> list[str]:
    """Returns a text for each setting that has no effect: of ``config``, or with ``None`` of the
    settings with which the plug-in's allocator is made. The library does not write these texts to
    the standard error."""
    found: list[str] = []

    def write(_: Any, text: Any, size: int) -> int:
        found.append(ctypes.string_at(text, size).decode(errors="replace"))
        return 0

    given = None if config is None else encoded(config)
    _library.library().cachalot_torch_notes(given, _library.Writer(write), None)
    return found


def warn(texts: list[str]) -> None:
    """Warns of settings without effect."""
    for text in texts:
        _warning.warn(f"cachalot: {text}")


def checked(config: str) -> list[str]:
    """Checks settings like :func:`check`, and returns the texts of the warnings."""
    text = encoded(config)
    found = notes(config)
    library, handle = _library.library(), ctypes.c_void_p()
    options = _library.Options(struct_size=ctypes.sizeof(_library.Options), flags=_library.SIMULATED, config=text)
    library.cachalot_create(ctypes.byref(options), ctypes.byref(handle))
    library.cachalot_destroy(handle)
    return found


def check(config: str) -> None:
    """Checks settings such as ``"policy:caching,expandable_segments:True"``, and changes nothing.

    Needs no GPU and no PyTorch: the settings are given to an allocator for a simulated device,
    which is destroyed at once. A :class:`CachalotWarning` names each setting without effect.

    Raises:
        ConfigurationError: the settings have a mistake. The text names the mistake, and lists what
            is accepted.
        TypeError: the settings are not a ``str``.
    """
    warn(checked(config))
