//! An auditor for the dynamic loader, which leads every way to `libcuda.so` to the library in front.
//!
//! A program can open the driver by an absolute path, or have a library path in the file.
//! The loader then never looks at `LD_LIBRARY_PATH`. The loader asks an auditor (`LD_AUDIT`, see
//! `rtld-audit(7)`) for every name and every path, and follows the auditor's answer. The auditor is a shared object in C, without any library.
//!
//! ```
//! use cachalot_auditor::{Texts, image};
//!
//! let texts = Texts {
//!     front: "/folder/libcuda.so.1",
//!     alias: "/folder/libcachalot-driver.so.1",
//!     driver_name: "libcuda.so.580",
//! };
//! assert!(image(texts)?.starts_with(b"\x7fELF"));
//! # Ok::<(), cachalot_auditor::Unfit>(())
//! ```

use std::fmt;

/// The auditor, with placeholders in place of the three texts.
const IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/auditor.so"));

/// The placeholders of the three texts, in the order of [`Texts`].
const PLACEHOLDERS: [&[u8]; 3] = [
    b"cachalot auditor: the library in front\0",
    b"cachalot auditor: the alias of the driver\0",
    b"cachalot auditor: the driver's own name\0",
];

/// Bytes of each text in the auditor, with the terminating zero.
const ROOM: usize = 4096;

/// The names in an auditor.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// Absolute path of the library in front. Every path to a `libcuda.so`, a `libcuda.so.1` or to
    /// [`driver_name`](Self::driver_name) leads to the library.
    pub front: &'a str,
    /// Absolute path of the real driver under an alias. The last component, without a folder,
    /// leads to the driver.
    pub alias: &'a str,
    /// Last component of the real driver's own path, such as `libcuda.so.580.159.04`.
    pub driver_name: &'a str,
}

/// A text without room in an auditor: longer than 4095 bytes, or with a zero in the text.
#[derive(Debug)]
pub struct Unfit(String);

impl fmt::Display for Unfit {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "`{}` is too long for the auditor, or has a zero byte: accepted are {} bytes", self.0, ROOM - 1)
    }
}

impl std::error::Error for Unfit {}

/// Returns the shared object of an auditor with the given texts, to be written to a file.
///
/// # Errors
/// [`Unfit`] for a text without room.
///
/// # Panics
/// Never: the compiled auditor has each placeholder once.
pub fn image(texts: Texts<'_>) -> Result<Vec<u8>, Unfit> {
    let mut image = IMAGE.to_vec();
    for (placeholder, text) in PLACEHOLDERS.iter().zip([texts.front, texts.alias, texts.driver_name]) {
        if text.len() >= ROOM || text.contains('\0') {
            return Err(Unfit(text.to_owned()));
        }
        let at = image.windows(placeholder.len()).position(|part| part == *placeholder).expect("each placeholder");
        image[at..at + placeholder.len()].fill(0);
        image[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::{IMAGE, PLACEHOLDERS, ROOM, Texts, image};

    #[test]
    fn each_placeholder_is_there_once_and_has_room() {
        for placeholder in PLACEHOLDERS {
            assert_eq!(IMAGE.windows(placeholder.len()).filter(|part| *part == placeholder).count(), 1);
            let at = IMAGE.windows(placeholder.len()).position(|part| part == placeholder).unwrap();
            assert!(IMAGE[at + placeholder.len()..at + ROOM].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn a_text_that_does_not_fit_is_refused() {
        let long = "x".repeat(ROOM);
        for wrong in [long.as_str(), "a\0b"] {
            let error = image(Texts { front: "/f", alias: wrong, driver_name: "d" }).unwrap_err();
            assert!(error.to_string().contains("accepted are 4095 bytes"), "{error}");
        }
        let written = image(Texts { front: &long[1..], alias: "/a", driver_name: "d" }).unwrap();
        assert_eq!(written.len(), IMAGE.len());
    }
}
