//! The switch of a rewritten crate: the number of the change taken.

/// At the beginning of the rewritten crate: a `const` function reads the switch only at run time.
pub(crate) const ATTRIBUTES: &str = "#![feature(core_intrinsics, const_eval_select)]\n#![allow(internal_features)]\n";

/// Returns the module for a crate with so many changes.
///
/// The variable `MUTANT` has the number of the change, and `MUTANT_SEEN` names a file that gets the
/// number of each change whose place is reached, once for each process.
pub(crate) fn module(changes: usize) -> String {
    const MODULE: &str = r#"

#[doc(hidden)]
#[allow(warnings, clippy::all)]
pub mod mutant_switch {
    pub extern crate std;
    use std::io::Write as _;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    const UNREAD: u32 = u32::MAX;
    const SEEN: u32 = u32::MAX - 1;
    static TAKEN: AtomicU32 = AtomicU32::new(UNREAD);
    static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
    static FILE: std::sync::Mutex<std::option::Option<std::fs::File>> = std::sync::Mutex::new(std::option::Option::None);

    #[inline]
    pub const fn is(number: u32) -> bool {
        core::intrinsics::const_eval_select((number,), in_constant, at_run_time)
    }

    const fn in_constant(_: u32) -> bool {
        false
    }

    #[inline]
    fn at_run_time(number: u32) -> bool {
        // `TAKEN.load` is a call with little optimisation, and three quarters of the time of a
        // test. SAFETY: the pointer is that of a static.
        let taken = unsafe { core::intrinsics::atomic_load::<u32, { core::intrinsics::AtomicOrdering::Relaxed }>(TAKEN.as_ptr()) };
        if taken >= SEEN { unusual(number) } else { taken == number }
    }

    #[cold]
    #[inline(never)]
    fn unusual(number: u32) -> bool {
        if TAKEN.load(Relaxed) == UNREAD {
            let taken = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(0);
            let seen = std::env::var_os("MUTANT_SEEN").is_some();
            TAKEN.store(if seen { SEEN } else { taken }, Relaxed);
            return is(number);
        }
        // Read first: most places are reached millions of times.
        let reached = &REACHED[number as usize];
        if !reached.load(Relaxed) && !reached.swap(true, Relaxed) {
            let mut file = FILE.lock().unwrap();
            let open = || {
                let path = std::env::var_os("MUTANT_SEEN").unwrap();
                std::fs::File::options().append(true).create(true).open(path).unwrap()
            };
            file.get_or_insert_with(open).write_all(std::format!("{number}\n").as_bytes()).unwrap();
        }
        false
    }
}
"#;
    MODULE.replace("COUNT", &(changes + 1).to_string())
}
