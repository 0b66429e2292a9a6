"""Addresses explained after a memory error."""

from __future__ import annotations

import ctypes

from .. import _handle, _library


def explain(address: int) -> str:
    """Explains an address at which a kernel has faulted, in English sentences: the block at the
    address or next to it, who has the block, and the streams that were announced for it. The call
    stacks come with :func:`record_memory_history`. Works after a fault has broken the context,
    where :func:`enable` was given ``guard:all`` or another guard. Raises
    :class:`cachalot_gpu.CachalotError` if nothing is known of the address."""
    handle, where, length = _handle.require(), ctypes.c_void_p(address), ctypes.c_size_t()
    _library.library().cachalot_explain_address(handle, where, None, 0, ctypes.byref(length))
    # What is known of the address may have grown since.
    text = ctypes.create_string_buffer(length.value + 4096)
    _library.library().cachalot_explain_address(handle, where, text, len(text), ctypes.byref(length))
    return text.value.decode(errors="replace")
