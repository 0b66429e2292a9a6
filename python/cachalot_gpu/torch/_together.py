"""Memory of several tags and devices that is parked and woken by one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from . import _tags

if TYPE_CHECKING:
    from collections.abc import Iterable


class Part(NamedTuple):
    """The memory of a tag on a device, and what becomes of its contents while it is parked."""

    name: str
    keep: bool
    device: int
    zero: bool = False
    """Without ``keep``, whether it wakes with zeroes."""

    @property
    def tag(self) -> _tags.Tag:
        """The tag on the device."""
        return _tags.Tag(self.name, self.device)

    def is_awake(self) -> bool:
        """Returns whether the memory can be used."""
        return self.tag.parking.state == "awake"


def park(parts: Iterable[Part]) -> None:
    """Parks what is awake, contents that are kept first. If that fails, what was parked here
    wakes."""
    parked: list[Part] = []
    try:
        for part in sorted(parts, key=lambda part: (not part.keep, part)):
            if part.is_awake():
                # Noted first: after an interrupt, and after a failure of the driver in the middle,
                # some of it is parked.
                parked.append(part)
                part.tag.park(keep=part.keep, zero=part.zero)
    except BaseException:
        wake(parked)
        raise


def wake(parts: Iterable[Part]) -> None:
    """Wakes what is parked, one device after the other, in the order of the parts. If that fails,
    some parts are awake, and the others parked."""
    parts = [part for part in parts if not part.is_awake()]
    for device in sorted({part.device for part in parts}):
        _tags.wake(*(part.tag for part in parts if part.device == device))
