//! The bytes of a pickle, a part at a time.

use super::error::Error;
use std::io::{ErrorKind, Read};

/// Bytes that are read at a time.
const PART_BYTES: usize = 256 << 10;

/// A pickle that is being read.
pub(super) struct Input<R> {
    from: R,
    part: Vec<u8>,
    /// How much of the part was taken.
    taken: usize,
    /// Bytes of the parts before.
    before: usize,
    /// What does not lie in one part.
    joined: Vec<u8>,
}

impl<R: Read> Input<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, part: Vec::new(), taken: 0, before: 0, joined: Vec::new() }
    }

    /// The number of the next byte, from 0.
    pub(super) fn at(&self) -> usize {
        self.before + self.taken
    }

    /// Reads the next part.
    ///
    /// # Errors
    /// [`Error::Truncated`] at the end, and those of the reader.
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

    /// The next bytes. No more memory is used than there are bytes, however many are asked for.
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

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        Ok(self.take(N)?.try_into().expect("as long as it was asked for"))
    }
}
