//! `tune:auto` through the C interface, on simulated devices.

use cachalot::abi::*;
use cachalot::capi::*;
use cachalot::status::*;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// An allocator over one device of 64 GiB, destroyed at the end.
struct Subject(*mut cachalot_allocator);

impl Drop for Subject {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(cachalot_destroy(self.0), CACHALOT_OK);
        }
    }
}

impl Subject {
    fn new(config: &CStr) -> Self {
        let options = cachalot_options {
            flags: CACHALOT_SIMULATED,
            config: config.as_ptr(),
            simulated_bytes: 64 << 30,
            ..cachalot_options::INIT
        };
        let mut handle = null_mut();
        // SAFETY: both variables outlive the call, and so does what the options point to.
        assert_eq!(unsafe { cachalot_create(&raw const options, &raw mut handle) }, CACHALOT_OK);
        Self(handle)
    }

    fn malloc(&self, bytes: usize) -> *mut c_void {
        let mut block = null_mut();
        // SAFETY: the variable outlives the call.
        assert_eq!(unsafe { cachalot_malloc(self.0, 0, bytes, null_mut(), &raw mut block) }, CACHALOT_OK);
        block
    }

    /// Three blocks at a time, of sizes that grow and begin anew.
    fn growing(&self) {
        for step in 0..90 {
            let blocks = [0; 3].map(|_| self.malloc((20 + step % 12) * 2 * MIB));
            blocks.into_iter().for_each(|block| assert_eq!(cachalot_free(self.0, block), CACHALOT_OK));
        }
        self.complete();
    }

    /// Blocks of one size.
    fn steady(&self) {
        for _ in 0..260 {
            let block = self.malloc(20 * MIB);
            assert_eq!(cachalot_free(self.0, block), CACHALOT_OK);
        }
        self.complete();
    }

    /// The device finishes all work.
    fn complete(&self) {
        assert_eq!(cachalot_simulate_progress(self.0, 0, null_mut()), CACHALOT_OK);
    }

    fn tuned(&self) -> cachalot_tune_report {
        // SAFETY: a structure of numbers, whose bytes may all be 0.
        let mut report: cachalot_tune_report = unsafe { std::mem::zeroed() };
        report.struct_size = size_of::<cachalot_tune_report>();
        // SAFETY: the structure outlives the call and tells its size.
        assert_eq!(unsafe { cachalot_tuned(self.0, 0, &raw mut report) }, CACHALOT_OK);
        report
    }

    fn config(&self) -> String {
        let mut text = [0_u8; 512];
        let mut length = 0;
        // SAFETY: the text has as much room as is said, and both variables outlive the call.
        let status = unsafe { cachalot_config(self.0, 0, text.as_mut_ptr().cast(), text.len(), &raw mut length) };
        assert_eq!(status, CACHALOT_OK);
        String::from_utf8(text[..length].to_vec()).expect("UTF-8")
    }

    fn reserved(&self) -> i64 {
        let mut value = 0;
        // SAFETY: the name ends with NUL, and the variable outlives the call.
        let status = unsafe { cachalot_stat(self.0, 0, c"reserved_bytes.all.current".as_ptr(), &raw mut value) };
        assert_eq!(status, CACHALOT_OK);
        value
    }

    /// Announces iterations of `work` until the report is as wanted.
    fn until(&self, work: impl Fn(&Self), is_done: impl Fn(&cachalot_tune_report) -> bool) -> cachalot_tune_report {
        let end = Instant::now() + Duration::from_secs(300);
        loop {
            // On a busy machine a search takes long. The window must not grow until the search has ended.
            if self.tuned().stage != CACHALOT_TUNE_SEARCHING {
                work(self);
            }
            assert_eq!(cachalot_iteration(self.0, 0), CACHALOT_OK);
            let report = self.tuned();
            if is_done(&report) {
                return report;
            }
            assert!(Instant::now() < end, "{report:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn two_phases_are_tuned_in_the_background() {
    let subject = Subject::new(c"tune:auto,tune_budget_ms:100000");
    assert_eq!(subject.tuned().stage, CACHALOT_TUNE_RECORDING);
    // A phase without waste changes nothing.
    let steady = subject.until(Subject::steady, |report| report.searches > 0);
    assert_eq!((steady.switches, steady.without_gain, steady.tuned), (0, 1, 0), "{steady:?}");
    assert_eq!(subject.config(), "tune:auto,tune_budget_ms:100000");

    // A phase whose sizes differ does.
    let switched = subject.until(Subject::growing, |report| report.switches > 0);
    assert_eq!((switched.tuned, switched.stage), (1, CACHALOT_TUNE_TRIAL), "{switched:?}");
    assert!(switched.predicted_bytes < switched.before_bytes, "{switched:?}");
    assert!(subject.config().contains("expandable_segments:True"), "{}", subject.config());
    let held = subject.until(Subject::growing, |report| report.held + report.taken_back > 0);
    assert_eq!((held.held, held.taken_back), (1, 0), "{held:?}");
    assert!(held.given_back_bytes > 0, "{held:?}");
    assert!(subject.reserved() as u64 <= held.before_bytes / 2, "{} of {held:?}", subject.reserved());

    // What the program sets ends what was found, and keeps what it set before.
    let own = CString::new("max_split_size_mb:256").expect("no NUL");
    // SAFETY: the text ends with NUL and outlives the call.
    assert_eq!(unsafe { cachalot_configure(subject.0, own.as_ptr()) }, CACHALOT_OK);
    assert_eq!(subject.config(), "max_split_size_mb:256,tune:auto,tune_budget_ms:100000");
    assert_eq!(subject.tuned().tuned, 0);
}

#[test]
fn upkeep_is_an_idle_moment_and_a_search_ends_with_its_allocator() {
    let subject = Subject::new(c"tune:auto");
    subject.growing();
    let mut more = 0;
    // SAFETY: the variable outlives the call.
    assert_eq!(unsafe { cachalot_maintain(subject.0, 0, 1000, &raw mut more) }, CACHALOT_OK);
    assert_eq!((subject.tuned().windows, subject.tuned().stage), (1, CACHALOT_TUNE_SEARCHING));
    let begin = Instant::now();
    drop(subject);
    assert!(begin.elapsed() < Duration::from_secs(60), "the search is abandoned");

    let subject = Subject::new(c"tune:auto,tune_budget_ms:100000");
    subject.growing();
    assert_eq!(cachalot_maintain_every(subject.0, 1000, 1000), CACHALOT_OK);
    let end = Instant::now() + Duration::from_secs(300);
    while subject.tuned().switches == 0 {
        subject.complete();
        assert!(Instant::now() < end, "{:?}", subject.tuned());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_capture_keeps_its_settings() {
    let subject = Subject::new(c"tune:auto,tune_budget_ms:100000");
    subject.growing();
    assert_eq!(cachalot_iteration(subject.0, 0), CACHALOT_OK);
    let mut pool = cachalot_pool::default();
    // SAFETY: the variable outlives the call.
    assert_eq!(unsafe { cachalot_pool_create(subject.0, 0, 0, &raw mut pool) }, CACHALOT_OK);
    assert_eq!(cachalot_capture_begin(subject.0, 0, pool, CACHALOT_ROUTE_ALL, null_mut()), CACHALOT_OK);
    std::thread::sleep(Duration::from_millis(500));
    for _ in 0..5 {
        assert_eq!(cachalot_iteration(subject.0, 0), CACHALOT_OK);
    }
    assert_eq!((subject.tuned().switches, subject.config().as_str()), (0, "tune:auto,tune_budget_ms:100000"));
    assert_eq!(cachalot_capture_end(subject.0, 0, pool), CACHALOT_OK);
    subject.until(|_| (), |report| report.switches > 0);
    assert_eq!(cachalot_pool_release(subject.0, 0, pool), CACHALOT_OK);
}

#[test]
fn a_forked_child_is_refused_and_the_search_goes_on_in_its_parent() {
    let subject = Subject::new(c"tune:auto,tune_budget_ms:100000");
    subject.growing();
    assert_eq!(cachalot_iteration(subject.0, 0), CACHALOT_OK);
    assert_eq!(subject.tuned().stage, CACHALOT_TUNE_SEARCHING);
    // SAFETY: the child calls nothing but the library, which refuses it, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = cachalot_iteration(subject.0, 0) == CACHALOT_ERROR_FORKED
            && cachalot_destroy(subject.0) == CACHALOT_ERROR_FORKED;
        // SAFETY: ends the child without the destructors of its parent.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = -1;
    // SAFETY: the variable outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was not refused");
    subject.until(|_| (), |report| report.switches > 0);
}

#[test]
fn without_the_setting_nothing_is_recorded_and_other_policies_refuse_it() {
    let subject = Subject::new(c"");
    subject.growing();
    assert_eq!(cachalot_iteration(subject.0, 0), CACHALOT_OK);
    let report = subject.tuned();
    assert_eq!((report.stage, report.windows, report.tuned), (CACHALOT_TUNE_OFF, 0, 0));
    for config in [c"policy:stitched,tune:auto", c"policy:planned,tune:auto"] {
        let options = cachalot_options { flags: CACHALOT_SIMULATED, config: config.as_ptr(), ..cachalot_options::INIT };
        let mut handle = null_mut();
        // SAFETY: both variables outlive the call, and so does what the options point to.
        let status = unsafe { cachalot_create(&raw const options, &raw mut handle) };
        assert_eq!(status, CACHALOT_ERROR_INVALID_CONFIG);
    }
}
