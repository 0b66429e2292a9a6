//! Bytes of device memory that are kept for waits; see `context_wait.rs`. Nothing here calls the
//! driver.

use crate::driver::types::{CuContext, CuDevicePtr};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The number of bytes kept in a context. A wait frees a byte and obtains a new one in its place.
/// The second step fails if another part of the program takes the place first, so `KEPT` waits in a
/// row can lose their byte. The driver has all these bytes in one page.
const KEPT: usize = 16;

/// The bytes of a context.
#[derive(Debug, Default)]
struct OfContext {
    /// How many devices are open in the context.
    users: usize,
    /// Whether bytes should be kept.
    wanted: bool,
    /// The addresses of the bytes.
    bytes: Vec<CuDevicePtr>,
    /// The number of bytes that threads have taken and may still give back.
    taken: usize,
}

/// The bytes of all contexts with open devices of an allocator.
#[derive(Debug, Default)]
pub(crate) struct KeptBytes {
    contexts: Mutex<BTreeMap<CuContext, OfContext>>,
    given_back: Condvar,
}

impl KeptBytes {
    /// Creates a record without any context. Allocates nothing.
    pub(crate) const fn new() -> Self {
        Self { contexts: Mutex::new(BTreeMap::new()), given_back: Condvar::new() }
    }

    /// Notes a new open device in `context`.
    pub(crate) fn begin(&self, context: CuContext) {
        self.lock().entry(context).or_default().users += 1;
    }

    /// Notes the closing of a device in `context`. After the last device, returns the bytes.
    pub(crate) fn end(&self, context: CuContext) -> Vec<CuDevicePtr> {
        let mut contexts = self.lock();
        let Some(its) = contexts.get_mut(&context) else { return Vec::new() };
        its.users -= 1;
        if its.users > 0 {
            return Vec::new();
        }
        self.given_back.notify_all();
        contexts.remove(&context).map_or_else(Vec::new, |its| its.bytes)
    }

    /// Returns the contexts with open devices.
    pub(crate) fn contexts(&self) -> Vec<CuContext> {
        self.lock().keys().copied().collect()
    }

    /// Notes that bytes should be kept in `context`. Returns whether a device is open there.
    pub(crate) fn want(&self, context: CuContext) -> bool {
        self.lock().get_mut(&context).map(|its| its.wanted = true).is_some()
    }

    /// Returns whether another byte should be kept in `context`.
    pub(crate) fn lacks(&self, context: CuContext) -> bool {
        self.lock().get(&context).is_some_and(|its| its.wanted && its.bytes.len() + its.taken < KEPT)
    }

    /// Keeps a byte. Returns the byte if no device is open in `context` any longer.
    pub(crate) fn keep(&self, context: CuContext, byte: CuDevicePtr) -> Option<CuDevicePtr> {
        let mut contexts = self.lock();
        let Some(its) = contexts.get_mut(&context) else { return Some(byte) };
        its.bytes.push(byte);
        self.given_back.notify_all();
        None
    }

    /// Takes a byte for a wait. If other waits have all bytes, waits for one of them. Returns
    /// `None` if no byte is kept. [`give_back`](Self::give_back) must follow.
    pub(crate) fn take(&self, context: CuContext) -> Option<CuDevicePtr> {
        let mut contexts = self.lock();
        loop {
            let its = contexts.get_mut(&context)?;
            if let Some(byte) = its.bytes.pop() {
                its.taken += 1;
                return Some(byte);
            }
            if its.taken == 0 {
                return None;
            }
            contexts = self.given_back.wait(contexts).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends a wait after [`take`](Self::take). `byte` is the new byte in place of the one that was
    /// taken, if there is one. Returns it if no device is open in `context` any longer.
    pub(crate) fn give_back(&self, context: CuContext, byte: Option<CuDevicePtr>) -> Option<CuDevicePtr> {
        let mut contexts = self.lock();
        let Some(its) = contexts.get_mut(&context) else { return byte };
        // Meanwhile the last device may have closed and another one may have opened in the context.
        its.taken = its.taken.saturating_sub(1);
        its.bytes.extend(byte);
        self.given_back.notify_all();
        None
    }

    /// Locks the record. Poison is ignored, because no code under the lock panics.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<CuContext, OfContext>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_wait_without_a_byte_waits_for_that_of_another_thread() {
        let (kept, context) = (KeptBytes::new(), CuContext(1));
        kept.begin(context);
        assert!(kept.want(context) && kept.lacks(context));
        assert_eq!((kept.take(context), kept.keep(context, 7)), (None, None));
        for byte in [Some(8), None] {
            assert!(kept.take(context).is_some());
            std::thread::scope(|scope| {
                let other = scope.spawn(|| kept.take(context));
                std::thread::sleep(Duration::from_millis(20));
                assert!(!other.is_finished(), "the byte may come back");
                assert_eq!(kept.give_back(context, byte), None);
                assert_eq!(other.join().expect("no panic"), byte);
            });
            assert_eq!(kept.give_back(context, Some(9)), None);
            kept.end(context);
            kept.begin(context);
            kept.keep(context, 7);
        }
    }

    #[test]
    fn so_many_bytes_are_kept_and_a_taken_one_counts() {
        let (kept, context) = (KeptBytes::new(), CuContext(1));
        assert!(!kept.want(context) && !kept.lacks(context), "no device is open");
        kept.begin(context);
        assert!(!kept.lacks(context), "no byte is wanted");
        kept.want(context);
        for byte in 0..KEPT as u64 {
            assert!(kept.lacks(context));
            assert_eq!(kept.keep(context, byte), None);
        }
        assert!(!kept.lacks(context));
        let byte = kept.take(context).expect("kept");
        assert!(!kept.lacks(context), "it may come back");
        assert_eq!(kept.give_back(context, None), None);
        assert!(kept.lacks(context));
        kept.begin(context);
        assert_eq!(kept.end(context), Vec::<u64>::new(), "another device is open");
        assert_eq!(kept.end(context).len(), KEPT - 1);
        assert_eq!(kept.keep(context, byte), Some(byte), "no device is open");
        assert_eq!((kept.give_back(context, Some(byte)), kept.take(context)), (Some(byte), None));
        assert_eq!(kept.end(context), Vec::<u64>::new());
    }
}
