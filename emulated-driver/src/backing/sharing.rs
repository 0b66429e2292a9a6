//! Physical memory for another process: a descriptor that carries the device's file.
//!
//! ```text
//! exporter: our end ── socket ── their end: the descriptor that the program passes on
//!                                └ one message: the parts of the file, with the file itself
//! ```
//!
//! An import reads the message and leaves it there, so a descriptor can be imported several times,
//! also after the exporter has ended. Each import keeps a duplicate of the descriptor. Our end of
//! the socket hangs up once the last descriptor and the last import are gone: until then the
//! exporter does not use the memory again.

use crate::backing::pages::Extent;
use crate::values::code::{Answer, Code};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Longest message, below the system's usual limit for a socket.
const MOST_BYTES: usize = 128 << 10;

/// An export: our end of the socket.
#[derive(Debug)]
pub(crate) struct Export(OwnedFd);

impl Export {
    /// Returns whether a descriptor or an import of the memory is left, in any process.
    pub(crate) fn is_in_use(&self) -> bool {
        let mut ends = [PollFd::new(&self.0, PollFlags::empty())];
        let polled = poll(&mut ends, Some(&Timespec::default()));
        polled.is_err() || !ends[0].revents().contains(PollFlags::HUP)
    }
}

/// Imported memory.
#[derive(Debug)]
pub(crate) struct Import {
    /// The exporter's number of the device.
    pub(crate) device: i32,
    /// The parts of the file.
    pub(crate) extents: Vec<Extent>,
    /// The file of the device.
    pub(crate) file: File,
    /// What keeps the memory.
    pub(crate) source: Imported,
}

/// The duplicate of the descriptor, which keeps the exporter from using the memory again.
#[derive(Debug)]
pub(crate) struct Imported(#[expect(dead_code, reason = "open for as long as it lives")] OwnedFd);

impl Imported {
    /// Keeps the file of memory that was opened by its name alone.
    pub(crate) fn by_name(file: &File) -> Answer<Self> {
        file.try_clone().map(|file| Self(file.into())).map_err(|_| Code::OPERATING_SYSTEM)
    }
}

/// Makes a descriptor of parts of the file of a device.
pub(crate) fn export(device: usize, extents: &[Extent], file: BorrowedFd<'_>) -> Answer<(Export, OwnedFd)> {
    let parts: Vec<_> = extents.iter().map(|extent| (extent.offset, extent.bytes)).collect();
    let text = json!({"cachalot-emulated-memory": parts, "device": device}).to_string();
    let send = || {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let files = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        rights.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&ours, &[IoSlice::new(text.as_bytes())], &mut rights, SendFlags::DONTWAIT)?;
        Ok::<_, rustix::io::Errno>((Export(ours), theirs))
    };
    if text.len() > MOST_BYTES { Err(Code::OPERATING_SYSTEM) } else { send().map_err(|_| Code::OPERATING_SYSTEM) }
}

/// Imports a descriptor. `None` if the descriptor is not open, or none of [`export`].
pub(crate) fn import(descriptor: RawFd) -> Option<Import> {
    // SAFETY: the call accepts any number as a descriptor.
    let duplicate = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    if duplicate < 0 {
        return None;
    }
    // SAFETY: the call above created the descriptor, and no other owner exists.
    let descriptor = unsafe { OwnedFd::from_raw_fd(duplicate) };
    let mut text = vec![0; MOST_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let length = recvmsg(&descriptor, &mut [IoSliceMut::new(&mut text)], &mut rights, flags).ok()?.bytes;
    let file = rights.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    })?;
    let message: Value = serde_json::from_slice(&text[..length]).ok()?;
    let part = |part: &Value| Some(Extent { offset: part[0].as_u64()?, bytes: part[1].as_u64()? });
    let extents = message["cachalot-emulated-memory"].as_array()?.iter().map(part).collect::<Option<_>>()?;
    let device = i32::try_from(message["device"].as_i64()?).ok()?;
    Some(Import { device, extents, file: File::from(file), source: Imported(descriptor) })
}
