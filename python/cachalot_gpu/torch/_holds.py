"""Frees of the driver that are held off, around collectives and functions on the host."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .. import _handle, _library
from ._installed import device_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._installed import Device


@contextlib.contextmanager
def hold_frees(*devices: Device) -> Iterator[None]:
    """Holds the frees of the driver off inside of the block, in all threads.

        with hold_frees(0, 1):
            launch_collective_on_both()

    A free of the driver waits for the device. Between the launches of a collective over several
    GPUs, it would wait for work that waits for the next launch. Inside of the block no request and
    no free waits for a GPU or gives memory back to the driver. A request grows the cache, and fails
    where it would have waited or given memory back.

    Args:
        devices: the devices. Without one, the current one.

    Raises:
        UnavailableError: cachalot serves no memory of PyTorch.
    """
    handle, library = _handle.require(), _library.library()
    with contextlib.ExitStack() as held:
        for index in map(device_index, devices or (None,)):
            library.cachalot_hold_begin(handle, index)
            held.callback(library.cachalot_hold_end, handle, index)
        yield
