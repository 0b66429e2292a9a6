//! The record of a course: a digest, and the text if asked for.

use std::fmt;

/// The text of a course so far.
pub struct Notes {
    digest: u64,
    text: Option<String>,
}

impl Notes {
    /// Keeps the digest alone.
    pub fn digested() -> Self {
        // The offset and, below, the factor of FNV-1a.
        Self { digest: 0xcbf2_9ce4_8422_2325, text: None }
    }

    /// Keeps the text as well.
    pub fn in_words() -> Self {
        Self { text: Some(String::new()), ..Self::digested() }
    }

    /// Returns the digest of the text.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the text, if kept.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Writes a line.
    pub(super) fn write(&mut self, text: fmt::Arguments<'_>) {
        fmt::write(self, text).expect("notes take every text");
        fmt::Write::write_str(self, "\n").expect("notes take every text");
    }
}

impl fmt::Write for Notes {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for byte in part.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(text) = &mut self.text {
            text.push_str(part);
        }
        Ok(())
    }
}
