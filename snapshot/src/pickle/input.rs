//! The bytes of a pickle, a part at a time.

use super::error::Error;
use std::io::{ErrorKind, Read};

/// Bytes per read.
const PART_BYTES: usize = 256 << 10;

/// A pickle during reading.
pub(super) struct Input<R> {
    from: R,
    part: Vec<u8>,
    /// Number of bytes already taken from the part.
    taken: usize,
    /// Number of bytes in earlier parts.
    before: usize,
    /// A copy of bytes that span several parts.
    joined: Vec<u8>,
}

impl<R: Read> Input<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, part: Vec::new(), taken: 0, before: 0, joined: Vec::new() }
    }

    /// Returns the position of the next byte, from 0.
    pub(super) fn at(&self) -> usize {
        self.before + self.taken
    }

    /// Reads the next part.
    ///
    /// # Errors
    /// [`Error::Truncated`] at the end, and the errors of the reader.
    #[cold]
    fn next_part(&mut self) -> Result<(), Error> {
        self.before += self.part.len();
        self.taken = 0;
        self.part.resize(PART_BYTES, 0);
        let read = loop {
            match self.from.read(&mut self.part) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        // The part is empty after an error, as at the end.
        self.part.truncate(*read.as_ref().unwrap_or(&0));
        if read.map_err(Error::Io)? == 0 { Err(Error::Truncated(self.before)) } else { Ok(()) }
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Error> {
        loop {
            if let Some(&byte) = self.part.get(self.taken) {
                self.taken += 1;
                return Ok(byte);
            }
            self.next_part()?;
        }
    }

    /// Returns the next `length` bytes. Memory grows with the bytes present, not with `length`.
    #[inline]
    pub(super) fn take(&mut self, length: usize) -> Result<&[u8], Error> {
        let end = self.taken.saturating_add(length);
        if end <= self.part.len() {
            let start = std::mem::replace(&mut self.taken, end);
            return Ok(&self.part[start..end]);
        }
        self.take_joined(length)
    }

    #[cold]
    fn take_joined(&mut self, length: usize) -> Result<&[u8], Error> {
        self.joined.clear();
        loop {
            let end = self.taken.saturating_add(length - self.joined.len()).min(self.part.len());
            self.joined.extend_from_slice(&self.part[self.taken..end]);
            self.taken = end;
            if self.joined.len() == length {
                return Ok(&self.joined);
            }
            self.next_part()?;
        }
    }

    /// Returns the bytes to the end of the line. Memory grows with the bytes present.
    pub(super) fn line(&mut self) -> Result<&[u8], Error> {
        self.joined.clear();
        loop {
            match self.byte()? {
                b'\n' => return Ok(self.joined.strip_suffix(b"\r").unwrap_or(&self.joined)),
                byte => self.joined.push(byte),
            }
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        Ok(self.take(N)?.try_into().expect("as long as it was asked for"))
    }
}
