//! An allocator on simulated devices, called through the C interface.

use cachalot::c::abi::{
    CACHALOT_SIMULATED, cachalot_allocator, cachalot_block, cachalot_device_info, cachalot_options, cachalot_pool,
    cachalot_snapshot_options, cachalot_statistics, cachalot_status, cachalot_stream, cachalot_trace_entry,
};
use cachalot::c::capi::{
    cachalot_configure, cachalot_create, cachalot_destroy, cachalot_find_statistic, cachalot_free, cachalot_get_block,
    cachalot_get_config, cachalot_get_device_info, cachalot_get_statistics, cachalot_last_error, cachalot_malloc,
    cachalot_pool_create, cachalot_snapshot, cachalot_visit_statistics, cachalot_visit_trace,
};
use cachalot::c::status::CACHALOT_OK;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null_mut, without_provenance_mut};

pub(crate) const MIB: usize = 1 << 20;

/// Returns the calling thread's last error.
pub(crate) fn last_error() -> String {
    // SAFETY: only calls of this thread write to the text, and none runs while it is copied.
    unsafe { CStr::from_ptr(cachalot_last_error()) }.to_string_lossy().into_owned()
}

/// Expects success.
#[track_caller]
pub(crate) fn ok(status: cachalot_status) {
    assert_eq!(status, CACHALOT_OK, "{}", last_error());
}

/// Returns the handle of a stream number.
pub(crate) fn stream(number: usize) -> cachalot_stream {
    without_provenance_mut(number * 0x10000)
}

/// An allocator, destroyed at the end. A block still live at the end fails the test.
pub(crate) struct Subject(pub(crate) *mut cachalot_allocator);

// SAFETY: any thread may call any function of the library with the handle.
unsafe impl Sync for Subject {}

impl Drop for Subject {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            ok(cachalot_destroy(self.0));
        }
    }
}

impl Subject {
    /// Creates an allocator after `change` of the options. All memory that the options point to
    /// lives until the end of the call.
    pub(crate) fn try_new(change: impl FnOnce(&mut cachalot_options)) -> Result<Self, cachalot_status> {
        let mut options = cachalot_options { flags: CACHALOT_SIMULATED, ..cachalot_options::INIT };
        change(&mut options);
        let mut handle = null_mut();
        // SAFETY: both variables outlive the call, and so does what the options point to.
        let status = unsafe { cachalot_create(&raw const options, &raw mut handle) };
        if status == CACHALOT_OK { Ok(Self(handle)) } else { Err(status) }
    }

    #[track_caller]
    pub(crate) fn new(change: impl FnOnce(&mut cachalot_options)) -> Self {
        Self::try_new(change).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
    }

    #[track_caller]
    pub(crate) fn plain() -> Self {
        Self::new(|_| {})
    }

    #[track_caller]
    pub(crate) fn with_config(config: &CStr) -> Self {
        Self::new(|options| options.config = config.as_ptr())
    }

    pub(crate) fn try_malloc(
        &self,
        device: c_int,
        bytes: usize,
        stream: cachalot_stream,
    ) -> (cachalot_status, *mut c_void) {
        let mut block = null_mut();
        // SAFETY: the variable outlives the call.
        let status = unsafe { cachalot_malloc(self.0, device, bytes, stream, &raw mut block) };
        (status, block)
    }

    /// Requests a block of device 0.
    #[track_caller]
    pub(crate) fn malloc(&self, bytes: usize, stream: cachalot_stream) -> *mut c_void {
        self.malloc_on(0, bytes, stream)
    }

    #[track_caller]
    pub(crate) fn malloc_on(&self, device: c_int, bytes: usize, stream: cachalot_stream) -> *mut c_void {
        let (status, block) = self.try_malloc(device, bytes, stream);
        ok(status);
        block
    }

    #[track_caller]
    pub(crate) fn free(&self, block: *mut c_void) {
        ok(cachalot_free(self.0, block));
    }

    #[track_caller]
    pub(crate) fn base_of(&self, address: *const c_void) -> cachalot_block {
        // SAFETY: all zeros are a value of this structure of numbers and pointers.
        let mut out: cachalot_block = unsafe { std::mem::zeroed() };
        out.struct_size = size_of::<cachalot_block>();
        // SAFETY: the structure outlives the call and tells its size.
        ok(unsafe { cachalot_get_block(self.0, address, &raw mut out) });
        out
    }

    #[track_caller]
    pub(crate) fn device_info(&self, device: c_int) -> cachalot_device_info {
        // SAFETY: all zeros are a value of this structure of numbers.
        let mut out: cachalot_device_info = unsafe { std::mem::zeroed() };
        out.struct_size = size_of::<cachalot_device_info>();
        // SAFETY: the structure outlives the call and tells its size.
        ok(unsafe { cachalot_get_device_info(self.0, device, &raw mut out) });
        out
    }

    /// Creates a private pool of device 0.
    #[track_caller]
    pub(crate) fn pool(&self) -> cachalot_pool {
        let mut pool = cachalot_pool::default();
        // SAFETY: the variable outlives the call.
        ok(unsafe { cachalot_pool_create(self.0, 0, 0, &raw mut pool) });
        pool
    }

    /// Returns the active settings on device 0.
    #[track_caller]
    pub(crate) fn config(&self) -> String {
        let mut length = 0;
        // SAFETY: there is no buffer, and the variable outlives the call.
        ok(unsafe { cachalot_get_config(self.0, 0, null_mut(), 0, &raw mut length) });
        let mut buffer = vec![0xff_u8; length + 1];
        // SAFETY: the buffer is as long as it is said to be.
        ok(unsafe { cachalot_get_config(self.0, 0, buffer.as_mut_ptr().cast(), buffer.len(), null_mut()) });
        let text = CStr::from_bytes_until_nul(&buffer).expect("ended by NUL");
        assert_eq!(text.count_bytes(), length);
        text.to_string_lossy().into_owned()
    }

    pub(crate) fn configure(&self, config: &CStr) -> cachalot_status {
        // SAFETY: the text outlives the call.
        unsafe { cachalot_configure(self.0, config.as_ptr()) }
    }

    /// Returns the statistics of device 0 as a structure.
    #[track_caller]
    pub(crate) fn stats(&self) -> cachalot_statistics {
        // SAFETY: all zeros are a value of this structure of numbers.
        let mut out: cachalot_statistics = unsafe { std::mem::zeroed() };
        out.struct_size = size_of::<cachalot_statistics>();
        // SAFETY: the structure outlives the call and tells its size.
        ok(unsafe { cachalot_get_statistics(self.0, 0, &raw mut out) });
        out
    }

    /// Returns a statistic of device 0 by name.
    #[track_caller]
    pub(crate) fn stat(&self, key: &CStr) -> i64 {
        let mut value = 0;
        // SAFETY: text and variable outlive the call.
        ok(unsafe { cachalot_find_statistic(self.0, 0, key.as_ptr(), &raw mut value) });
        value
    }

    /// Asks for a statistic that there may not be.
    pub(crate) fn try_stat(&self, key: &CStr) -> cachalot_status {
        let mut value = 0;
        // SAFETY: text and variable outlive the call.
        unsafe { cachalot_find_statistic(self.0, 0, key.as_ptr(), &raw mut value) }
    }

    /// Returns the names and values of all statistics of device 0.
    #[track_caller]
    pub(crate) fn all_stats(&self) -> Vec<(String, i64)> {
        unsafe extern "C" fn gather(userdata: *mut c_void, key: *const c_char, value: i64) -> c_int {
            // SAFETY: `userdata` points to the caller's list, and nothing else uses the list during
            // the call.
            let list = unsafe { &mut *userdata.cast::<Vec<(String, i64)>>() };
            // SAFETY: the library's texts are ended by NUL.
            list.push((unsafe { CStr::from_ptr(key) }.to_string_lossy().into_owned(), value));
            0
        }
        let mut list = Vec::<(String, i64)>::new();
        // SAFETY: the callback takes the list, which outlives the call.
        ok(unsafe { cachalot_visit_statistics(self.0, 0, Some(gather), (&raw mut list).cast()) });
        list
    }

    /// Returns the recorded events of a device, oldest first.
    #[track_caller]
    pub(crate) fn trace(&self, device: c_int) -> Vec<cachalot_trace_entry> {
        unsafe extern "C" fn gather(userdata: *mut c_void, entry: *const cachalot_trace_entry) -> c_int {
            // SAFETY: `userdata` points to the caller's list, and nothing else uses the list during
            // the call.
            let list = unsafe { &mut *userdata.cast::<Vec<cachalot_trace_entry>>() };
            // SAFETY: the entry lasts until the callback returns.
            list.push(unsafe { *entry });
            0
        }
        let mut list = Vec::<cachalot_trace_entry>::new();
        // SAFETY: the callback takes the list, which outlives the call.
        ok(unsafe { cachalot_visit_trace(self.0, device, Some(gather), (&raw mut list).cast()) });
        list
    }

    /// Writes a snapshot, in the format of the file's extension.
    pub(crate) fn write_snapshot(&self, file: &Path) -> cachalot_status {
        let path = CString::new(file.to_str().expect("UTF-8")).expect("no NUL");
        let options = cachalot_snapshot_options {
            struct_size: size_of::<cachalot_snapshot_options>(),
            path: path.as_ptr(),
            format: 0,
            flags: 0,
        };
        // SAFETY: the options and the text outlive the call, and there is no callback.
        unsafe { cachalot_snapshot(self.0, &raw const options, None, null_mut()) }
    }
}
