//! The sheet for answers, and the objects of the questions.

use cachalot_emulated_driver::api::{Api, Given};
use cachalot_emulated_driver::client::Client;
use std::ffi::{CString, c_void};
use std::fmt::Display;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// 2 MiB, the granularity of every device so far.
pub(crate) const PAGE: usize = 2 << 20;

/// The sheet for the answers of a group.
pub(crate) struct Sheet {
    api: Api,
    /// The path of the library, as given by the caller.
    pub(crate) library: String,
    /// The prefix of every line.
    pub(crate) group: String,
    /// The control functions of the library, if the library is the emulated driver.
    pub(crate) control: Option<Client>,
}

impl Deref for Sheet {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Sheet {
    /// Creates a sheet for a group of questions to a library.
    pub(crate) fn new(library: &str, group: &str) -> Result<Self, libloading::Error> {
        let api = Api::load(library)?;
        let control = Client::load(library).ok();
        Ok(Self { api, library: library.to_owned(), group: group.to_owned(), control })
    }

    /// Writes an answer.
    pub(crate) fn line(&self, question: &str, answer: impl Display) {
        println!("{} {question} = {answer}", self.group);
    }

    /// Writes something for the reader only.
    pub(crate) fn remark(&self, text: impl Display) {
        println!("# {} {text}", self.group);
    }

    /// Initializes the driver and makes the context of device 0 current, as every question
    /// requires.
    pub(crate) fn begin(&self) -> u64 {
        assert_eq!(self.cuInit(0), 0, "cuInit");
        self.enter(0).expect("a context on device 0")
    }
}

/// Returns the code of an outcome.
pub(crate) fn code<T>(outcome: Given<T>) -> u32 {
    outcome.err().unwrap_or(0)
}

/// Two words for a yes or no.
pub(crate) fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Asks again while the work before the question takes its moment, at most for half a second.
pub(crate) fn in_a_moment(ask: impl Fn() -> u32) -> u32 {
    const NOT_READY: u32 = 600;
    let mut answer = ask();
    for _ in 0..100 {
        if answer != NOT_READY {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        answer = ask();
    }
    answer
}

/// The text for a module: PTX for a real driver, and a shared object for the emulated driver.
pub(crate) fn image(sheet: &Sheet) -> CString {
    if sheet.control.is_some() {
        return CString::new(format!("CACHALOT-EMULATED {}", sheet.library)).expect("no NUL");
    }
    c".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n".to_owned()
}

/// Returns zeroed pages of the host that nobody gives back.
pub(crate) fn host_pages(bytes: usize) -> *mut c_void {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at any place.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED, "mmap");
    address
}

/// An address as a pointer of the host.
pub(crate) fn host(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).expect("an address"))
}

/// A host function that keeps its stream busy until the gate is open, or for [`PATIENCE`].
pub(crate) struct Gate(&'static AtomicBool);

/// The longest time for which a gate is closed.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a gate stays closed while a question is asked. Far longer than any call that does not
/// wait.
const CLOSED: Duration = Duration::from_millis(500);

unsafe extern "C" fn wait_for_gate(gate: *mut c_void) {
    // SAFETY: the flag of a gate lives as long as the process.
    let open = unsafe { &*gate.cast::<AtomicBool>() };
    let begin = Instant::now();
    while !open.load(Ordering::Acquire) && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(200));
    }
}

impl Gate {
    /// Closes a gate on a stream: work queued later waits.
    pub(crate) fn close(sheet: &Sheet, stream: u64) -> Self {
        let flag: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let argument = std::ptr::from_ref(flag).cast_mut().cast();
        assert_eq!(sheet.cuLaunchHostFunc(stream, wait_for_gate, argument), 0, "cuLaunchHostFunc");
        Self(flag)
    }

    /// Opens the gate.
    pub(crate) fn open(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Acts while the gate is closed, and says whether the action waited until another thread
    /// opened the gate: `no 0` for a call that returned at once.
    pub(crate) fn asked(&self, action: impl FnOnce() -> u32) -> String {
        let (done, told) = std::sync::mpsc::channel::<()>();
        let opened: &'static AtomicBool = self.0;
        let thread = std::thread::spawn(move || {
            let _timeout = told.recv_timeout(CLOSED);
            opened.store(true, Ordering::Release);
        });
        let answer = action();
        let waited = self.0.load(Ordering::Acquire);
        drop(done);
        thread.join().expect("joined");
        format!("{} {answer}", yes(waited))
    }
}
