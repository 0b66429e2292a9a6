//! A mapped file as a value of atomic words.

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;

/// A type whose values may be changed by any process at any time.
///
/// # Safety
/// Every bit pattern is a value. Every part is an atomic word, or is only passed on to the system.
pub(crate) unsafe trait Words: Sync {}

/// A mapping with a value at the start.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    map: MmapRaw,
    value: PhantomData<T>,
}

impl<T: Words> Shared<T> {
    /// Bytes of the file.
    pub(crate) const BYTES: u64 = size_of::<T>() as u64;

    /// Maps a file for reading and writing. The user alone may make the file shorter meanwhile, and
    /// no program of ours does.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        Self::of(MmapRaw::map_raw(file)?)
    }

    /// Maps a file for reading. A write to the value ends the process.
    pub(crate) fn to_read(file: &File) -> io::Result<Self> {
        Self::of(MmapOptions::new().map_raw_read_only(file)?)
    }

    /// Maps memory without a file, of zero bytes.
    pub(crate) fn private() -> io::Result<Self> {
        Self::of(MmapMut::map_anon(size_of::<T>())?.into())
    }

    /// Returns the bytes of the value, which nobody else may change meanwhile.
    pub(crate) fn bytes(&mut self) -> &[u8] {
        // SAFETY: the mapping has the bytes of a value, and the caller has the only reference to
        // it.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), size_of::<T>()) }
    }

    fn of(map: MmapRaw) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= 4096, "a mapping starts at a page") };
        if map.len() < size_of::<T>() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { map, value: PhantomData })
    }
}

impl<T: Words> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let first = self.map.as_ptr();
        // SAFETY: the mapping has the bytes of a value, starts at a page and lives as long as
        // `self`. Every bit pattern is a value, and concurrent changes are of atomic words.
        unsafe { &*first.cast::<std::ffi::c_void>().cast::<T>() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Shared, Words};
    use std::sync::atomic::{AtomicU64, Ordering};

    #[repr(C)]
    struct Two([AtomicU64; 2]);

    // SAFETY: two atomic words.
    unsafe impl Words for Two {}

    #[test]
    fn a_value_is_shared_by_its_mappings_and_a_short_file_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8).unwrap();
        assert!(Shared::<Two>::new(&file).is_err());
        file.set_len(Shared::<Two>::BYTES).unwrap();
        let (one, two) = (Shared::<Two>::new(&file).unwrap(), Shared::<Two>::to_read(&file).unwrap());
        one.0[1].store(7, Ordering::Relaxed);
        assert_eq!(two.0[1].load(Ordering::Relaxed), 7);
        assert_eq!(Shared::<Two>::private().unwrap().0[1].load(Ordering::Relaxed), 0);
    }
}
