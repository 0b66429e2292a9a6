//! Memory that another process opens by a handle of 64 bytes.
//!
//! The handle names the process and a descriptor of its description: a file in memory, which says
//! where the memory is and by which descriptor the process has the file of the device. The other
//! process opens both through `/proc`, so no message passes between the processes. A number by
//! chance tells the descriptor of the handle from a later one.

use crate::backing::pages::{Extent, PAGE};
use crate::values::code::{Answer, Code};
use crate::values::structs::IpcMemory;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};

/// The first bytes of a handle.
const MARK: &[u8; 8] = b"cachalot";

/// A part of a region of device memory.
#[derive(Clone, Debug)]
pub(crate) struct Handed {
    /// The owner's number of the device.
    pub(crate) device: usize,
    /// The region, as parts of the file.
    pub(crate) extents: Vec<Extent>,
    /// Start of the part in the region.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Describes memory of a file for other processes. The handle is good as long as the description is
/// open.
pub(crate) fn offer(memory: &Handed, file: &File) -> Answer<(IpcMemory, File)> {
    // A hasher of the standard library starts with a number by chance.
    let chance = RandomState::new().hash_one(std::process::id());
    let parts: Vec<_> = memory.extents.iter().map(|extent| (extent.offset, extent.bytes)).collect();
    let text = json!({
        "chance": chance, "device": memory.device, "file": file.as_raw_fd(), "parts": parts,
        "offset": memory.offset, "bytes": memory.bytes,
    });
    // SAFETY: the name is a C string, the only requirement of the call.
    let descriptor = unsafe { libc::memfd_create(c"cachalot-emulated-offer".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(Code::OPERATING_SYSTEM);
    }
    // SAFETY: the call above created the descriptor, and no other owner exists.
    let mut description = unsafe { File::from_raw_fd(descriptor) };
    description.write_all(text.to_string().as_bytes()).map_err(|_| Code::OPERATING_SYSTEM)?;
    let mut handle = [0; 64];
    handle[..8].copy_from_slice(MARK);
    handle[8..12].copy_from_slice(&std::process::id().to_ne_bytes());
    handle[12..16].copy_from_slice(&descriptor.to_ne_bytes());
    handle[16..24].copy_from_slice(&chance.to_ne_bytes());
    Ok((IpcMemory(handle), description))
}

/// Opens memory of another process. `None` if no process offers the memory.
pub(crate) fn open(handle: &IpcMemory) -> Option<(Handed, File)> {
    let word = |at: usize| Some(u32::from_ne_bytes(handle.0[at..at + 4].try_into().ok()?));
    if &handle.0[..8] != MARK {
        return None;
    }
    let process = word(8)?;
    let mut text = String::new();
    File::open(format!("/proc/{process}/fd/{}", word(12)?)).ok()?.read_to_string(&mut text).ok()?;
    let description: Value = serde_json::from_str(&text).ok()?;
    if description["chance"].as_u64()? != u64::from_ne_bytes(handle.0[16..24].try_into().ok()?) {
        return None;
    }
    let descriptor = description["file"].as_u64()?;
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let part = |part: &Value| Some(Extent { offset: part[0].as_u64()?, bytes: part[1].as_u64()? });
    let extents: Vec<Extent> = description["parts"].as_array()?.iter().map(part).collect::<Option<_>>()?;
    let (offset, bytes) = (description["offset"].as_u64()?, description["bytes"].as_u64()?);
    // A mapping past the end of the file would end the process at the first use.
    let length = file.metadata().ok()?.len();
    let whole = |extent: &Extent| extent.offset.is_multiple_of(PAGE) && extent.bytes.is_multiple_of(PAGE);
    let inside = |extent: &Extent| extent.offset.checked_add(extent.bytes).is_some_and(|end| end <= length);
    let sum = extents.iter().try_fold(0_u64, |sum, extent| sum.checked_add(extent.bytes))?;
    if bytes == 0 || !extents.iter().all(|extent| whole(extent) && inside(extent)) || offset.checked_add(bytes)? > sum {
        return None;
    }
    let device = usize::try_from(description["device"].as_u64()?).ok()?;
    Some((Handed { device, extents, offset, bytes }, file))
}
