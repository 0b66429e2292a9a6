//! Values of a file, each with its bounds and a message that names what is accepted.

use crate::code::Code;
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use std::fmt::{self, Formatter};

/// Bytes: a number, or a text such as `80GiB`. At most a PiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Size(pub(crate) u64);

/// A part of a hundred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Percent(pub(crate) u32);

/// A version of two numbers, such as `9.0`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32);

/// A text that fits into NVML's buffer for names, with at least one character and no NUL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Name(pub(crate) String);

/// A place on the PCI bus: domain, bus and device, such as `0000:3b:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BusId(pub(crate) u32, pub(crate) u32, pub(crate) u32);

/// A code, as the name of the header or as a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answered(pub(crate) Code);

/// A kind of events: `xid`, or the bit of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EventKind(pub(crate) u64);

/// A number from `LEAST` to `MOST`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Within<const LEAST: i64, const MOST: i64>(pub(crate) i64);

/// Most bytes of a [`Size`].
const MOST_BYTES: u64 = 1 << 50;
/// Most bytes of a name, with the final NUL: `NVML_DEVICE_NAME_V2_BUFFER_SIZE`.
const NAME_BYTES: usize = 96;

/// The units of a [`Size`].
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// Reads a size with a unit.
fn size(text: &str) -> Option<u64> {
    let (number, unit) =
        UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes))).unwrap_or((text, 1));
    number.trim_end().parse::<u64>().ok()?.checked_mul(unit)
}

/// Reads a version.
fn version(text: &str) -> Option<Version> {
    let (major, minor) = text.split_once('.')?;
    Some(Version(major.parse().ok()?, minor.parse().ok()?)).filter(|version| version.0 < 1000 && version.1 < 100)
}

/// Reads a place on the bus. The domain and the function may be left out.
pub(crate) fn bus_id(text: &str) -> Option<BusId> {
    let (place, function) = text.split_once('.').unwrap_or((text, "0"));
    let number = |text: &str, most| u32::from_str_radix(text, 16).ok().filter(|&number| number <= most);
    let mut parts = place.rsplit(':');
    let device = number(parts.next()?, 0x1f)?;
    let bus = number(parts.next()?, 0xff)?;
    let domain = parts.next().map_or(Some(0), |text| number(text, u32::MAX))?;
    (parts.next().is_none() && function == "0").then_some(BusId(domain, bus, device))
}

/// A visitor for a value that is a number or a text.
struct Either<T> {
    accepted: &'static str,
    number: fn(i64) -> Option<T>,
    text: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for Either<T> {
    type Value = T;

    fn expecting(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(self.accepted)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        let found = i64::try_from(number).ok().and_then(self.number);
        found.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        (self.number)(number).ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// Implements reading from a file: what is accepted, as a number and as a text.
macro_rules! read {
    ($($type:ty: $accepted:literal, $number:expr, $text:expr;)*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
                source.deserialize_any(Either { accepted: $accepted, number: $number, text: $text })
            }
        }
    )*};
}

read! {
    Size: "bytes, or a text such as \"80GiB\", at most 1024TiB",
        |number| u64::try_from(number).ok().filter(|&bytes| bytes <= MOST_BYTES).map(Size),
        |text| size(text).filter(|&bytes| bytes <= MOST_BYTES).map(Size);
    Percent: "a number from 0 to 100",
        |number| u32::try_from(number).ok().filter(|&percent| percent <= 100).map(Percent), |_| None;
    Version: "a text such as \"9.0\"", |_| None, version;
    Name: "a text of 1 to 95 bytes", |_| None,
        |text| (!text.is_empty() && text.len() < NAME_BYTES && !text.contains('\0')).then(|| Name(text.to_owned()));
    BusId: "a text such as \"0000:3b:00.0\"", |_| None, bus_id;
    Answered: "a code of NVML, such as \"GPU_IS_LOST\" or 15",
        |number| u32::try_from(number).ok().map(|number| Answered(Code(number))), |text| Code::named(text).map(Answered);
    EventKind: "\"xid\", \"single_bit_ecc\", \"double_bit_ecc\", or a bit as a number",
        |number| u64::try_from(number).ok().filter(|bit| bit.is_power_of_two()).map(EventKind),
        |text| match text {
            "single_bit_ecc" => Some(EventKind(1)),
            "double_bit_ecc" => Some(EventKind(2)),
            "xid" => Some(EventKind(8)),
            _ => None,
        };
}

impl<'de, const LEAST: i64, const MOST: i64> Deserialize<'de> for Within<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(source)?;
        if (LEAST..=MOST).contains(&number) {
            return Ok(Self(number));
        }
        Err(D::Error::custom(format!("{number} is not from {LEAST} to {MOST}")))
    }
}

#[cfg(test)]
mod tests {
    use super::{BusId, bus_id, size, version};

    #[test]
    fn sizes_versions_and_places_are_read_and_others_refused() {
        assert_eq!((size("80GiB"), size("12 MB"), size("7")), (Some(80 << 30), Some(12_000_000), Some(7)));
        assert_eq!((size("80GiBs"), size("-1"), size("99999999999TiB")), (None, None, None));
        assert_eq!(version("13.0").map(|version| (version.0, version.1)), Some((13, 0)));
        assert_eq!((version("13"), version("a.b"), version("1000.0")), (None, None, None));
        assert_eq!(bus_id("00000000:3B:1f.0"), Some(BusId(0, 0x3b, 0x1f)));
        assert_eq!(bus_id("3b:00"), Some(BusId(0, 0x3b, 0)));
        assert_eq!((bus_id("3b"), bus_id("1:2:3:4"), bus_id("100:00.0"), bus_id("00:00.1")), (None, None, None, None));
    }
}
