//! The allocator of the calling thread, and the owner of an address.
//!
//! A context's allocator is opened at the first request in the context. Each thread keeps the
//! allocator of the thread's last context, so the fast path asks the driver for the current context
//! and takes no lock. A context destroyed by the program is forgotten, and the numbers of all
//! threads' kept allocators become stale.
//!
//! The memory of a green context is that of the primary context behind it (the *root*), and so is
//! the allocator.

use crate::serve::served::Served;
use cachalot_cuda::driver::types::{CuContext, CuDevice, CuGreenContext};
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The served contexts of a process.
pub(super) struct Contexts {
    /// Changes whenever a context is forgotten. Unique among all values of the type.
    version: AtomicU64,
    /// The served contexts, in the order of their opening.
    served: RwLock<Vec<Arc<Served>>>,
    greens: RwLock<Vec<Green>>,
    /// Whether there ever was a green context. Most programs have none, and take no lock to learn
    /// so.
    has_greens: AtomicBool,
}

/// A green context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Green {
    pub(super) handle: CuGreenContext,
    /// The green context as a context.
    pub(super) context: CuContext,
    pub(super) root: CuContext,
    pub(super) device: CuDevice,
}

/// The last context of a thread.
struct Kept {
    version: u64,
    context: CuContext,
    served: Arc<Served>,
}

thread_local! {
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// Returns a number new to all [`Contexts`].
fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Contexts {
    /// Returns a list without contexts.
    pub(super) fn new() -> Self {
        Self {
            version: AtomicU64::new(next_version()),
            served: RwLock::default(),
            greens: RwLock::default(),
            has_greens: AtomicBool::new(false),
        }
    }

    /// Calls `act` with the open allocator of `context`. Takes no lock if the thread has
    /// used the context last. `Err` returns `act` uncalled.
    #[inline]
    pub(super) fn with<T, F: FnOnce(&Arc<Served>) -> T>(&self, context: CuContext, act: F) -> Result<T, F> {
        let version = self.version.load(Ordering::Acquire);
        let mut act = Some(act);
        // `try_with`: a destructor of another thread-local may free memory when the thread ends.
        let answer = KEPT.try_with(|kept| {
            // Borrowed already: a callback of the allocator calls again. It takes the slow way.
            let kept = kept.try_borrow().ok()?;
            let kept = kept.as_ref().filter(|kept| kept.version == version && kept.context == context)?;
            act.take().map(|act| act(&kept.served))
        });
        if let Ok(Some(answer)) = answer {
            return Ok(answer);
        }
        let Some(act) = act else { unreachable!("a call of `act` is an answer") };
        self.with_unkept(version, context, act)
    }

    /// Calls `act` with the allocator of a context different from the thread's last, and keeps the
    /// allocator.
    #[cold]
    fn with_unkept<T, F: FnOnce(&Arc<Served>) -> T>(&self, version: u64, context: CuContext, act: F) -> Result<T, F> {
        let Some(served) = self.of(context) else { return Err(act) };
        let _ = KEPT.try_with(|kept| {
            if let Ok(mut kept) = kept.try_borrow_mut() {
                *kept = Some(Kept { version, context, served: Arc::clone(&served) });
            }
        });
        Ok(act(&served))
    }

    /// Returns the context whose memory a context uses: of a green context the primary one.
    pub(super) fn root(&self, context: CuContext) -> CuContext {
        self.green(|green| green.context == context).map_or(context, |green| green.root)
    }

    /// Returns a green context.
    pub(super) fn green(&self, is_it: impl Fn(&Green) -> bool) -> Option<Green> {
        if !self.has_greens() {
            return None;
        }
        self.greens.read().unwrap_or_else(PoisonError::into_inner).iter().copied().find(is_it)
    }

    /// Returns whether there ever was a green context. Takes no lock.
    #[inline]
    pub(super) fn has_greens(&self) -> bool {
        self.has_greens.load(Ordering::Acquire)
    }

    /// Adds a green context.
    pub(super) fn add_green(&self, green: Green) {
        self.greens.write().unwrap_or_else(PoisonError::into_inner).push(green);
        self.has_greens.store(true, Ordering::Release);
        // The handle may be that of an earlier context.
        self.version.store(next_version(), Ordering::Release);
    }

    /// Forgets a green context, without a call of the driver.
    pub(super) fn forget_green(&self, handle: CuGreenContext) {
        self.greens.write().unwrap_or_else(PoisonError::into_inner).retain(|green| green.handle != handle);
        self.version.store(next_version(), Ordering::Release);
    }

    /// Returns the allocator of a context.
    pub(super) fn of(&self, context: CuContext) -> Option<Arc<Served>> {
        let context = self.root(context);
        self.read(|served| served.iter().find(|served| served.context() == context).cloned())
    }

    /// Adds the allocator of a context without an allocator.
    pub(super) fn add(&self, new: Arc<Served>) {
        self.served.write().unwrap_or_else(PoisonError::into_inner).push(new);
    }

    /// Forgets the allocator of a context, without a call of the driver. Returns the allocator.
    pub(super) fn forget(&self, context: CuContext) -> Option<Arc<Served>> {
        let mut served = self.served.write().unwrap_or_else(PoisonError::into_inner);
        let at = served.iter().position(|known| known.context() == context);
        let ended = at.map(|at| served.remove(at));
        self.version.store(next_version(), Ordering::Release);
        ended
    }

    /// Returns every served context.
    pub(super) fn all(&self) -> Vec<Arc<Served>> {
        self.read(<[_]>::to_vec)
    }

    /// Calls `act` with the list.
    fn read<T>(&self, act: impl FnOnce(&[Arc<Served>]) -> T) -> T {
        act(&self.served.read().unwrap_or_else(PoisonError::into_inner))
    }
}
