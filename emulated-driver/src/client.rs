//! The control functions for Rust tests. [`Client`] loads the library, or finds the loaded library,
//! and controls the emulated driver.

use crate::install::built_library;
use libloading::{Library, Symbol};
use serde_json::Value;
use std::ffi::{CString, OsStr, c_char, c_int, c_void};

/// A loaded emulated driver. Loading a file twice gives one driver, so a test and the program under
/// test may both load the file.
#[derive(Debug)]
pub struct Client {
    library: Library,
}

/// A refusal of a control function: the driver's code, or -1 for an invalid request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused(pub i32);

impl Client {
    /// Loads the library from a path or by name.
    ///
    /// # Errors
    /// The error of the loader.
    pub fn load(path: impl AsRef<OsStr>) -> Result<Self, libloading::Error> {
        // SAFETY: the library's initializers do nothing, and the methods below call each
        // function with the declared type.
        let library = unsafe { Library::new(path.as_ref()) }?;
        let client = Self { library };
        // Refuses any other libcuda now instead of at the first control call.
        client.find::<unsafe extern "C" fn() -> c_int>("cachalot_emulated_driver")?;
        Ok(client)
    }

    /// Loads the library from the build folder.
    ///
    /// # Panics
    /// If the library is not next to the running program, or cannot be loaded.
    pub fn built() -> Self {
        let path = built_library().expect("the built library");
        Self::load(path).expect("the library loads")
    }

    /// Returns the library, for calls of driver functions.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Adds rules to the fault plan, given as a JSON list.
    ///
    /// # Errors
    /// If the list is malformed. The reason is printed on stderr.
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

    /// Returns the number of calls hit by the plan.
    pub fn faults(&self) -> u64 {
        let faults: Symbol<'_, unsafe extern "C" fn() -> u64> = self.get("emu_faults");
        // SAFETY: the function takes nothing.
        unsafe { faults() }
    }

    /// Returns the number of calls of a driver function.
    ///
    /// # Panics
    /// On a name that is no symbol of the driver.
    pub fn calls(&self, function: &str) -> u64 {
        let name = text(function);
        let count: Symbol<'_, unsafe extern "C" fn(*const c_char) -> u64> = self.get("emu_calls");
        // SAFETY: a C string, alive during the call.
        let count = unsafe { count(name.as_ptr()) };
        assert_ne!(count, u64::MAX, "no function {function}");
        count
    }

    /// Returns the number of all driver calls.
    pub fn all_calls(&self) -> u64 {
        let count: Symbol<'_, unsafe extern "C" fn(*const c_char) -> u64> = self.get("emu_calls");
        // SAFETY: null asks for all.
        unsafe { count(std::ptr::null()) }
    }

    /// Returns the remembered calls, oldest first: objects with `call`, `fn`, `args`, `out`,
    /// `thread`, `context`, `result`.
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

    /// Returns an object with counts of all live objects.
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

    /// Cancels one [`hold`](Self::hold).
    ///
    /// # Errors
    /// The driver's code for an unknown stream.
    pub fn release(&self, stream: u64) -> Result<(), Refused> {
        self.on_stream("emu_release_stream", stream)
    }

    /// Returns the number of unfinished pieces of work on a stream.
    pub fn pending(&self, stream: u64) -> u64 {
        self.count_of("emu_pending", stream)
    }

    /// In step mode, runs up to `count` pieces of work and returns the number of pieces run.
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

    /// Sets the number of address bytes of the devices (4 TiB by default). A process with many
    /// copies of the library otherwise runs out of addresses.
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

    /// Delays each piece of work by a random time up to `delay_us`.
    pub fn set_delay_us(&self, delay_us: u64) {
        self.set("emu_set_delay_us", delay_us);
    }

    /// Keeps freed addresses and handles from being used again, or hands them out again first.
    pub fn set_quarantine(&self, on: bool) {
        self.switch("emu_set_quarantine", on);
    }

    /// Sets strict mode: a call with the handle of a destroyed stream or event aborts instead of
    /// answering a code.
    pub fn set_strict(&self, on: bool) {
        self.switch("emu_set_strict", on);
    }

    /// Lets `cuMemFree` wait for the context's work, or not.
    pub fn set_free_waits(&self, on: bool) {
        self.switch("emu_set_free_waits", on);
    }

    /// Lets work that touches forbidden memory break its context, or kill the process.
    pub fn set_delivers_faults(&self, on: bool) {
        self.switch("emu_set_delivers_faults", on);
    }

    /// Returns the device address of the last fault that was delivered, or 0.
    pub fn fault_address(&self) -> u64 {
        let get: Symbol<'_, unsafe extern "C" fn() -> u64> = self.get("emu_fault_address");
        // SAFETY: the function takes nothing.
        unsafe { get() }
    }

    /// Changes an entry of the table of answers.
    ///
    /// # Errors
    /// If no entry has the name.
    pub fn answer(&self, name: &str, code: u32) -> Result<(), Refused> {
        let name = text(name);
        let set: Symbol<'_, unsafe extern "C" fn(*const c_char, u32) -> c_int> = self.get("emu_answer");
        // SAFETY: a C string, alive during the call.
        outcome(unsafe { set(name.as_ptr(), code) })
    }

    /// Breaks a context with a sticky error. 0 means the current context.
    ///
    /// # Errors
    /// The driver's code for an unknown context.
    pub fn break_context(&self, context: u64, code: u32) -> Result<(), Refused> {
        let act: Symbol<'_, unsafe extern "C" fn(u64, u32) -> c_int> = self.get("emu_break_context");
        // SAFETY: the function takes numbers.
        outcome(unsafe { act(context, code) })
    }

    /// Queues work that breaks the stream's context on execution.
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

    /// Returns the present contents of device memory, without waiting for work.
    ///
    /// # Errors
    /// The driver's code for a range that is not wholly memory.
    pub fn peek(&self, address: u64, bytes: usize) -> Result<Vec<u8>, Refused> {
        let mut buffer = vec![0; bytes];
        let act: Symbol<'_, unsafe extern "C" fn(u64, *mut u8, u64) -> c_int> = self.get("emu_peek");
        // SAFETY: the buffer has the passed size.
        outcome(unsafe { act(address, buffer.as_mut_ptr(), bytes as u64) }).map(|()| buffer)
    }

    /// Returns the address under which work of a device finds a device address, for a host function
    /// in the role of a kernel.
    pub fn seen_by(&self, device: i32, address: u64) -> *mut c_void {
        let act: Symbol<'_, unsafe extern "C" fn(c_int, u64) -> *mut c_void> = self.get("emu_seen_by");
        // SAFETY: the function takes numbers.
        unsafe { act(device, address) }
    }

    /// Returns a symbol present in every emulated driver.
    fn get<T>(&self, name: &str) -> Symbol<'_, T> {
        self.find(name).expect("every emulated driver has the control functions")
    }

    /// Returns a symbol of the library.
    fn find<T>(&self, name: &str) -> Result<Symbol<'_, T>, libloading::Error> {
        // SAFETY: callers request the types defined in `control`.
        unsafe { self.library.get(name) }
    }

    /// Calls a function without arguments.
    fn act(&self, name: &str) {
        let act: Symbol<'_, unsafe extern "C" fn()> = self.get(name);
        // SAFETY: the function takes nothing.
        unsafe { act() };
    }

    /// Calls a function with a number.
    fn set(&self, name: &str, value: u64) {
        let set: Symbol<'_, unsafe extern "C" fn(u64)> = self.get(name);
        // SAFETY: the function takes a number.
        unsafe { set(value) };
    }

    /// Calls a function with a switch.
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

    /// Calls a function that returns a count.
    fn count_of(&self, name: &str, value: u64) -> u64 {
        let count: Symbol<'_, unsafe extern "C" fn(u64) -> u64> = self.get(name);
        // SAFETY: the function takes a number.
        unsafe { count(value) }
    }

    /// Calls a function that returns a text. The text may grow between the two calls.
    fn text_of(&self, name: &str) -> String {
        let read: Symbol<'_, unsafe extern "C" fn(*mut c_char, u64) -> u64> = self.get(name);
        let mut size = 1 << 12;
        loop {
            let mut buffer = vec![0_u8; size];
            // SAFETY: the buffer has the passed size.
            let length = unsafe { read(buffer.as_mut_ptr().cast(), size as u64) } as usize;
            if length < size {
                buffer.truncate(length);
                return String::from_utf8_lossy(&buffer).into_owned();
            }
            size = length + (1 << 12);
        }
    }
}

/// Converts a text for C.
fn text(text: &str) -> CString {
    CString::new(text).expect("no NUL inside")
}

/// Converts the number of an outcome.
fn outcome(number: c_int) -> Result<(), Refused> {
    if number == 0 { Ok(()) } else { Err(Refused(number)) }
}
