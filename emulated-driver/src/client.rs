//! The control functions for Rust tests: [`Client`] loads the library (or finds the loaded one) and steers it.

use crate::install::built_library;
use libloading::{Library, Symbol};
use serde_json::Value;
use std::ffi::{CString, OsStr, c_char, c_int, c_void};

/// A loaded emulated driver. Loading the same file twice gives the same driver, so a test may load it here and let the
/// program under test load it by its own means.
#[derive(Debug)]
pub struct Client {
    library: Library,
}

/// What a control function answered that is not zero: the driver's code, or -1 for a request that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused(pub i32);

impl Client {
    /// Loads the library at `path`, or of a name that the loader knows.
    ///
    /// # Errors
    /// The loader's.
    pub fn load(path: impl AsRef<OsStr>) -> Result<Self, libloading::Error> {
        // SAFETY: the library's initialisers do nothing; its functions are called with the types they have here.
        let library = unsafe { Library::new(path.as_ref()) }?;
        let client = Self { library };
        // Any other libcuda is refused here and not at the first control call.
        client.find::<unsafe extern "C" fn() -> c_int>("cachalot_emulated_driver")?;
        Ok(client)
    }

    /// Loads the library as it was built.
    ///
    /// # Panics
    /// If there is none beside the running program, or it cannot be loaded.
    pub fn built() -> Self {
        let path = built_library().expect("the built library");
        Self::load(path).expect("the library loads")
    }

    /// The library, for its driver functions.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Adds rules to the fault plan, a JSON list.
    ///
    /// # Errors
    /// If it cannot be understood; the reason is on stderr.
    pub fn plan(&self, json: &str) -> Result<(), Refused> {
        let json = text(json);
        let add: Symbol<'_, unsafe extern "C" fn(*const c_char) -> c_int> = self.get("emu_plan");
        // SAFETY: a C string, alive during the call.
        outcome(unsafe { add(json.as_ptr()) })
    }

    /// Empties the fault plan.
    pub fn clear_plan(&self) {
        self.act("emu_plan_clear");
    }

    /// How many calls the plan has hit.
    pub fn faults(&self) -> u64 {
        let faults: Symbol<'_, unsafe extern "C" fn() -> u64> = self.get("emu_faults");
        // SAFETY: the function takes nothing.
        unsafe { faults() }
    }

    /// How often a driver function was called.
    ///
    /// # Panics
    /// On a name that is not one of its symbols.
    pub fn calls(&self, function: &str) -> u64 {
        let name = text(function);
        let count: Symbol<'_, unsafe extern "C" fn(*const c_char) -> u64> = self.get("emu_calls");
        // SAFETY: a C string, alive during the call.
        let count = unsafe { count(name.as_ptr()) };
        assert_ne!(count, u64::MAX, "no function {function}");
        count
    }

    /// How many driver calls there were in all.
    pub fn all_calls(&self) -> u64 {
        let count: Symbol<'_, unsafe extern "C" fn(*const c_char) -> u64> = self.get("emu_calls");
        // SAFETY: null asks for all.
        unsafe { count(std::ptr::null()) }
    }

    /// The remembered calls, oldest first: objects with `call`, `fn`, `args`, `out`, `thread`, `context`, `result`.
    ///
    /// # Panics
    /// Never: the library writes JSON.
    pub fn log(&self) -> Vec<Value> {
        let lines = self.text_of("emu_log");
        lines.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Forgets the remembered calls.
    pub fn clear_log(&self) {
        self.act("emu_log_clear");
    }

    /// What is alive: an object of counts.
    ///
    /// # Panics
    /// Never: the library writes JSON.
    pub fn report(&self) -> Value {
        serde_json::from_str(&self.text_of("emu_report")).expect("JSON")
    }

    /// Keeps work on a stream from starting until [`release`](Self::release).
    ///
    /// # Errors
    /// The driver's code for an unknown stream.
    pub fn hold(&self, stream: u64) -> Result<(), Refused> {
        self.on_stream("emu_hold_stream", stream)
    }

    /// Undoes one [`hold`](Self::hold).
    ///
    /// # Errors
    /// The driver's code for an unknown stream.
    pub fn release(&self, stream: u64) -> Result<(), Refused> {
        self.on_stream("emu_release_stream", stream)
    }

    /// How many pieces of work on a stream are not done.
    pub fn pending(&self, stream: u64) -> u64 {
        self.count_of("emu_pending", stream)
    }

    /// Step mode: does up to `count` pieces of work and returns how many there were.
    pub fn step(&self, count: u64) -> u64 {
        self.count_of("emu_step", count)
    }

    /// Turns step mode on or off, before any work was queued.
    ///
    /// # Errors
    /// Once work was queued.
    pub fn set_step(&self, on: bool) -> Result<(), Refused> {
        let set: Symbol<'_, unsafe extern "C" fn(c_int) -> c_int> = self.get("emu_set_step");
        // SAFETY: the function takes a number.
        outcome(unsafe { set(on.into()) })
    }

    /// Sets how many bytes of addresses the devices have (4 TiB if not set): a process that loads many copies of the
    /// library runs out of addresses otherwise.
    ///
    /// # Errors
    /// After `cuInit`.
    pub fn set_address_space(&self, bytes: u64) -> Result<(), Refused> {
        let set: Symbol<'_, unsafe extern "C" fn(u64) -> c_int> = self.get("emu_set_address_space");
        // SAFETY: the function takes a number.
        outcome(unsafe { set(bytes) })
    }

    /// Starts the sequence of random choices anew.
    pub fn set_seed(&self, seed: u64) {
        self.set("emu_set_seed", seed);
    }

    /// Lets each piece of work wait a random time up to this before it runs.
    pub fn set_delay_us(&self, delay_us: u64) {
        self.set("emu_set_delay_us", delay_us);
    }

    /// Keeps freed addresses and handles from being used again, or hands them out again first.
    pub fn set_quarantine(&self, on: bool) {
        self.switch("emu_set_quarantine", on);
    }

    /// Aborts at calls with the handle of a destroyed stream or event from now on, or answers a code.
    pub fn set_strict(&self, on: bool) {
        self.switch("emu_set_strict", on);
    }

    /// Lets `cuMemFree` wait for the context's work, or not.
    pub fn set_free_waits(&self, on: bool) {
        self.switch("emu_set_free_waits", on);
    }

    /// Changes an entry of the table of answers.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn answer(&self, name: &str, code: u32) -> Result<(), Refused> {
        let name = text(name);
        let set: Symbol<'_, unsafe extern "C" fn(*const c_char, u32) -> c_int> = self.get("emu_answer");
        // SAFETY: a C string, alive during the call.
        outcome(unsafe { set(name.as_ptr(), code) })
    }

    /// Breaks a context (0: the current one) with a sticky error.
    ///
    /// # Errors
    /// The driver's code for an unknown context.
    pub fn break_context(&self, context: u64, code: u32) -> Result<(), Refused> {
        let act: Symbol<'_, unsafe extern "C" fn(u64, u32) -> c_int> = self.get("emu_break_context");
        // SAFETY: the function takes numbers.
        outcome(unsafe { act(context, code) })
    }

    /// Queues work that breaks its context when it runs.
    ///
    /// # Errors
    /// The driver's code for an unknown stream.
    pub fn fail_later(&self, stream: u64, code: u32) -> Result<(), Refused> {
        let act: Symbol<'_, unsafe extern "C" fn(u64, u32) -> c_int> = self.get("emu_fail_later");
        // SAFETY: the function takes numbers.
        outcome(unsafe { act(stream, code) })
    }

    /// Loses a device.
    ///
    /// # Errors
    /// The driver's code for an unknown device.
    pub fn lose_device(&self, device: i32, code: u32) -> Result<(), Refused> {
        let act: Symbol<'_, unsafe extern "C" fn(c_int, u32) -> c_int> = self.get("emu_lose_device");
        // SAFETY: the function takes numbers.
        outcome(unsafe { act(device, code) })
    }

    /// Tears the driver down: calls answer 4, or abort the process if `crash`.
    pub fn tear_down(&self, crash: bool) {
        self.switch("emu_tear_down", crash);
    }

    /// Pretends that other processes use `bytes` of a device's memory.
    ///
    /// # Errors
    /// The driver's code for an unknown device.
    pub fn set_others_bytes(&self, device: i32, bytes: u64) -> Result<(), Refused> {
        let act: Symbol<'_, unsafe extern "C" fn(c_int, u64) -> c_int> = self.get("emu_set_others_bytes");
        // SAFETY: the function takes numbers.
        outcome(unsafe { act(device, bytes) })
    }

    /// Device memory as it is now, without waiting for anything.
    ///
    /// # Errors
    /// The driver's code for a range that is not all memory.
    pub fn peek(&self, address: u64, bytes: usize) -> Result<Vec<u8>, Refused> {
        let mut buffer = vec![0; bytes];
        let act: Symbol<'_, unsafe extern "C" fn(u64, *mut u8, u64) -> c_int> = self.get("emu_peek");
        // SAFETY: the buffer has the size that is passed.
        outcome(unsafe { act(address, buffer.as_mut_ptr(), bytes as u64) }).map(|()| buffer)
    }

    /// Where work of a device finds a device address; a host function that plays a kernel uses it.
    pub fn seen_by(&self, device: i32, address: u64) -> *mut c_void {
        let act: Symbol<'_, unsafe extern "C" fn(c_int, u64) -> *mut c_void> = self.get("emu_seen_by");
        // SAFETY: the function takes numbers.
        unsafe { act(device, address) }
    }

    /// A symbol that every emulated driver has.
    fn get<T>(&self, name: &str) -> Symbol<'_, T> {
        self.find(name).expect("every emulated driver has the control functions")
    }

    /// A symbol of the library.
    fn find<T>(&self, name: &str) -> Result<Symbol<'_, T>, libloading::Error> {
        // SAFETY: callers ask for the types that `control` defines.
        unsafe { self.library.get(name) }
    }

    /// Calls a function without arguments.
    fn act(&self, name: &str) {
        let act: Symbol<'_, unsafe extern "C" fn()> = self.get(name);
        // SAFETY: the function takes nothing.
        unsafe { act() };
    }

    /// Calls a function that takes a number.
    fn set(&self, name: &str, value: u64) {
        let set: Symbol<'_, unsafe extern "C" fn(u64)> = self.get(name);
        // SAFETY: the function takes a number.
        unsafe { set(value) };
    }

    /// Calls a function that takes yes or no.
    fn switch(&self, name: &str, on: bool) {
        let set: Symbol<'_, unsafe extern "C" fn(c_int)> = self.get(name);
        // SAFETY: the function takes a number.
        unsafe { set(on.into()) };
    }

    /// Calls a function of a stream.
    fn on_stream(&self, name: &str, stream: u64) -> Result<(), Refused> {
        let act: Symbol<'_, unsafe extern "C" fn(u64) -> c_int> = self.get(name);
        // SAFETY: the function takes a number.
        outcome(unsafe { act(stream) })
    }

    /// Calls a function that counts.
    fn count_of(&self, name: &str, value: u64) -> u64 {
        let count: Symbol<'_, unsafe extern "C" fn(u64) -> u64> = self.get(name);
        // SAFETY: the function takes a number.
        unsafe { count(value) }
    }

    /// Calls a function that hands a text out; the text may grow between the two calls.
    fn text_of(&self, name: &str) -> String {
        let read: Symbol<'_, unsafe extern "C" fn(*mut c_char, u64) -> u64> = self.get(name);
        let mut size = 1 << 12;
        loop {
            let mut buffer = vec![0_u8; size];
            // SAFETY: the buffer has the size that is passed.
            let length = unsafe { read(buffer.as_mut_ptr().cast(), size as u64) } as usize;
            if length < size {
                buffer.truncate(length);
                return String::from_utf8_lossy(&buffer).into_owned();
            }
            size = length + (1 << 12);
        }
    }
}

/// A text for C.
fn text(text: &str) -> CString {
    CString::new(text).expect("no NUL inside")
}

/// The outcome that a number stands for.
fn outcome(number: c_int) -> Result<(), Refused> {
    if number == 0 { Ok(()) } else { Err(Refused(number)) }
}
