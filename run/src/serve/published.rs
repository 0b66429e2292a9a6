//! Handles of blocks, published for other processes of the user.
//!
//! A handle of the driver opens the driver's whole allocation, from the first byte on. A block in
//! the middle of a segment would be opened as the block before. So a block in the middle gets a
//! handle of the library: a mark, and a name of 16 random bytes under which the exporter publishes
//! the driver's handle, the block's offset and size. A process without the library passes the
//! handle to the driver, which refuses the handle (1, asked of driver 580).

use crate::shared::process::Identity;
use crate::shared::{folder, form};
use cachalot_cuda::driver::types::CuIpcMemHandle;
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The first bytes of a handle of the library.
const MARK: &[u8; 16] = b"cachalot-handle1";

/// Bytes of a name.
const NAME: usize = 16;

/// Bytes of a published file: the driver's handle, and five words.
const FILE_BYTES: usize = 64 + 5 * 8;

/// The start of the files' names.
const PREFIX: &str = "handle-";

/// A block of another process, as published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PublishedBlock {
    /// The driver's handle of the block's segment.
    pub(super) segment: CuIpcMemHandle,
    /// Bytes from the start of the segment to the block.
    pub(super) offset: u64,
    /// Bytes of the block.
    pub(super) bytes: u64,
}

/// An opened block of another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Opened {
    /// The address at which the driver has opened the segment.
    pub(super) segment: u64,
    /// Bytes of the block.
    pub(super) bytes: u64,
    /// How often the block was opened and not closed.
    pub(super) times: u32,
}

/// The published handles of the process, and the opened blocks.
#[derive(Default, Debug)]
pub(super) struct Handles {
    /// The published blocks, by first address.
    published: Mutex<HashMap<u64, (CuIpcMemHandle, PathBuf)>>,
    /// The opened blocks, by first address in the process.
    opened: Mutex<HashMap<u64, Opened>>,
}

impl Handles {
    /// Publishes the block at `base`, and returns the library's handle. A block published before
    /// has the earlier handle.
    ///
    /// # Errors
    /// The folder of the user's files or the file cannot be written.
    pub(super) fn publish(&self, base: u64, block: &PublishedBlock) -> io::Result<CuIpcMemHandle> {
        let mut published = lock(&self.published);
        if let Some((handle, _)) = published.get(&base) {
            return Ok(*handle);
        }
        let folder = folder::of_user()?;
        if published.is_empty() {
            remove_stale(&folder);
        }
        let mut name = [0; NAME];
        fs::File::open("/dev/urandom")?.read_exact(&mut name)?;
        let path = folder.join(file_name(&name));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let own = Identity::of_caller()?;
        file.write_all(&block.segment.reserved)?;
        for word in [block.offset, block.bytes, u64::from(own.pid), own.start, own.image] {
            file.write_all(&word.to_le_bytes())?;
        }
        let mut handle = CuIpcMemHandle { reserved: [0; 64] };
        handle.reserved[..MARK.len()].copy_from_slice(MARK);
        handle.reserved[MARK.len()..MARK.len() + NAME].copy_from_slice(&name);
        published.insert(base, (handle, path));
        Ok(handle)
    }

    /// Withdraws the handle of the block at `base`, which is freed: no process opens the block
    /// again.
    pub(super) fn withdraw(&self, base: u64) {
        if let Some((_, path)) = lock(&self.published).remove(&base) {
            // A file that stays names a dead block until this process has ended.
            let _ = fs::remove_file(path);
        }
    }

    /// Locks the opened blocks.
    pub(super) fn opened(&self) -> MutexGuard<'_, HashMap<u64, Opened>> {
        lock(&self.opened)
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        for (_, path) in lock(&self.published).values() {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the block of a handle of the library. `None` for a handle of the driver.
///
/// # Errors
/// The block was freed, the process has ended, or the file cannot be read.
pub(super) fn read(handle: &CuIpcMemHandle) -> Option<io::Result<PublishedBlock>> {
    let name = handle.reserved.strip_prefix(MARK)?;
    Some(read_named(&name[..NAME]))
}

/// Reads the file of a name.
fn read_named(name: &[u8]) -> io::Result<PublishedBlock> {
    let path = folder::of_user()?.join(file_name(name));
    let mut content = [0; FILE_BYTES];
    form::open(&path, FILE_BYTES as u64, false)?.read_exact(&mut content)?;
    let (block, owner) = parse(&content);
    if owner.is_alive() { Ok(block) } else { Err(io::Error::new(io::ErrorKind::NotFound, "the exporter has ended")) }
}

/// Parses the content of a file: the block, and the holding process.
fn parse(content: &[u8; FILE_BYTES]) -> (PublishedBlock, Identity) {
    let mut segment = CuIpcMemHandle { reserved: [0; 64] };
    segment.reserved.copy_from_slice(&content[..64]);
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&content[64 + at * 8..64 + at * 8 + 8]);
        u64::from_le_bytes(bytes)
    };
    let owner = Identity { pid: word(2) as u32, start: word(3), image: word(4) };
    (PublishedBlock { segment, offset: word(0), bytes: word(1) }, owner)
}

/// Removes the files of ended processes.
fn remove_stale(folder: &std::path::Path) {
    let Ok(files) = fs::read_dir(folder) else { return };
    for file in files.flatten() {
        let path = file.path();
        if !file.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let mut content = [0; FILE_BYTES];
        let Ok(mut opened) = form::open(&path, FILE_BYTES as u64, false) else { continue };
        if opened.read_exact(&mut content).is_ok() && !parse(&content).1.is_alive() {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the file's name for a name.
fn file_name(name: &[u8]) -> String {
    name.iter().fold(PREFIX.to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// Locks a table. A panic inside leaves the table whole.
fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
