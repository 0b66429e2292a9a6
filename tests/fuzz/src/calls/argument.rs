//! Arguments of calls, mostly as a sensible program would give, sometimes arbitrary.

use arbitrary::{Arbitrary, Result, Unstructured};
use cachalot::c::abi::cachalot_stream;
use cachalot_policies::NAMES as POLICIES;
use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, without_provenance_mut};

/// Configurations beside the policies with their defaults.
const CONFIGS: [&str; 11] = [
    "",
    "policy:bfc",
    "policy:buddy,arena_mb:16",
    "policy:size_class,chunk_mb:64",
    "policy:slab",
    "policy:direct",
    "policy:planned,plan_deadline_ms:1",
    "policy:planned,plan_deadline_ms:1,fallback:slab",
    "expandable_segments:True",
    "max_split_size_mb:32,garbage_collection_threshold:0.6",
    "roundup_power2_divisions:4,throw_on_cudamalloc_oom:True",
];

/// Names of statistics.
const KEYS: [&str; 3] = ["reserved_bytes.all.peak", "num_ooms", "active.small_pool.current"];

/// The handle of an allocator.
#[derive(Debug)]
pub(super) enum Handle {
    /// The handle of the live allocator.
    Own,
    /// The handle of a destroyed allocator.
    Destroyed,
    /// A number that belongs to no allocator.
    Number(u64),
}

impl<'a> Arbitrary<'a> for Handle {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? {
            0 => Self::Number(u.arbitrary()?),
            1 => Self::Destroyed,
            2 => Self::Number(0),
            _ => Self::Own,
        })
    }
}

/// The number of a device.
#[derive(Debug)]
pub(super) struct Device(pub(super) c_int);

impl<'a> Arbitrary<'a> for Device {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self(match u.arbitrary::<u8>()? {
            0 => u.arbitrary()?,
            1..=15 => 1,
            _ => 0,
        }))
    }
}

/// A number of bytes.
#[derive(Debug)]
pub(super) struct Bytes(pub(super) usize);

impl<'a> Arbitrary<'a> for Bytes {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self(match u.arbitrary::<u8>()? {
            0 => u.arbitrary()?,
            1 => 0,
            2..=100 => u.int_in_range(1..=1 << 12)?,
            101..=200 => u.int_in_range(1..=1 << 21)?,
            _ => u.int_in_range(1..=1 << 27)?,
        }))
    }
}

/// A number of 64 bits, of any magnitude.
#[derive(Debug)]
pub(super) struct Word(pub(super) u64);

impl<'a> Arbitrary<'a> for Word {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let bits: u8 = u.arbitrary()?;
        Ok(Self(u.arbitrary::<u64>()?.checked_shr(bits.into()).unwrap_or(0)))
    }
}

/// The handle of a stream.
#[derive(Debug)]
pub(super) struct StreamHandle(pub(super) u64);

impl<'a> Arbitrary<'a> for StreamHandle {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self(match u.arbitrary::<u8>()? {
            0 => u.arbitrary()?,
            // The default streams are 0, 1 and 2.
            few => (few % 6).into(),
        }))
    }
}

impl StreamHandle {
    pub(super) fn pointer(&self) -> cachalot_stream {
        without_provenance_mut(self.0 as usize)
    }
}

/// An address on a device.
#[derive(Debug)]
pub(super) enum Address {
    /// The address of a live block, plus an offset.
    Held(u8, u8),
    /// The address of a freed block.
    Freed(u8),
    /// Any number.
    Number(u64),
}

impl<'a> Arbitrary<'a> for Address {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? {
            0 => Self::Number(u.arbitrary()?),
            1..=10 => Self::Freed(u.arbitrary()?),
            11..=20 => Self::Held(u.arbitrary()?, u.arbitrary()?),
            _ => Self::Held(u.arbitrary()?, 0),
        })
    }
}

/// The name of a pool.
#[derive(Debug)]
pub(super) enum PoolName {
    /// A pool created by the library.
    Made(u8),
    /// Any two numbers.
    Own(u8, u8),
}

impl<'a> Arbitrary<'a> for PoolName {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? {
            0..=63 => Self::Own(u.arbitrary()?, u.arbitrary()?),
            _ => Self::Made(u.arbitrary()?),
        })
    }
}

/// The `struct_size` of a structure.
#[derive(Debug)]
pub(super) enum Size {
    /// The size in the header.
    Right,
    /// Any size.
    Other(u64),
}

impl<'a> Arbitrary<'a> for Size {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? {
            0 => Self::Other(u.arbitrary()?),
            1..=31 => Self::Other(u.int_in_range(0..=512)?),
            _ => Self::Right,
        })
    }
}

/// A text.
#[derive(Debug)]
pub(super) struct Text(CString);

impl Text {
    /// Returns a text for C, or a null pointer.
    pub(super) fn pointer(text: Option<&Self>) -> *const c_char {
        text.map_or(null(), |text| text.0.as_ptr())
    }
}

impl<'a> Arbitrary<'a> for Text {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let text = match u.arbitrary::<u8>()? as usize {
            known if known < CONFIGS.len() => CONFIGS[known].into(),
            known if known < CONFIGS.len() + KEYS.len() => KEYS[known - CONFIGS.len()].into(),
            known if known < CONFIGS.len() + KEYS.len() + POLICIES.len() => {
                format!("policy:{}", POLICIES[known - CONFIGS.len() - KEYS.len()]).into()
            }
            _ => {
                let bytes: &[u8] = u.arbitrary()?;
                bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
            }
        };
        Ok(Self(CString::new(text).map_err(|_| arbitrary::Error::IncorrectFormat)?))
    }
}
