//! Correct uses of every function, on simulated devices.

use cachalot::abi::*;
use cachalot::capi::*;
use cachalot::status::*;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};

const MIB: usize = 1 << 20;

/// Gathers parts of a text.
unsafe extern "C" fn append(userdata: *mut c_void, text: *const c_char, bytes: usize) -> c_int {
    // SAFETY: the caller's vector, without another user during the call.
    let whole = unsafe { &mut *userdata.cast::<Vec<u8>>() };
    // SAFETY: the text has the passed length.
    whole.extend_from_slice(unsafe { std::slice::from_raw_parts(text.cast(), bytes) });
    0
}

/// An allocator, destroyed at the end. A block still live at the end fails the test.
struct Subject(*mut cachalot_allocator);

impl Drop for Subject {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(cachalot_destroy(self.0), CACHALOT_OK, "{}", last_error());
        }
    }
}

/// Returns the calling thread's last error.
fn last_error() -> String {
    // SAFETY: only calls of this thread write to the text, and none runs while it is copied.
    unsafe { CStr::from_ptr(cachalot_last_error()) }.to_string_lossy().into_owned()
}

/// Expects success.
#[track_caller]
fn ok(status: cachalot_status) {
    assert_eq!(status, CACHALOT_OK, "{}", last_error());
}

/// Returns the handle of a stream number.
fn stream(number: usize) -> cachalot_stream {
    without_provenance_mut(number * 0x10000)
}

/// Returns the length of a structure, for the first field.
const fn sized<T>() -> usize {
    size_of::<T>()
}

impl Subject {
    fn new(change: impl FnOnce(&mut cachalot_options)) -> Self {
        let mut options = cachalot_options { flags: CACHALOT_SIMULATED, ..cachalot_options::INIT };
        change(&mut options);
        let mut handle = null_mut();
        // SAFETY: both variables outlive the call, and so does what the options point to.
        ok(unsafe { cachalot_create(&raw const options, &raw mut handle) });
        Self(handle)
    }

    fn plain() -> Self {
        Self::new(|_| {})
    }

    #[track_caller]
    fn malloc(&self, bytes: usize, stream: cachalot_stream) -> *mut c_void {
        let (status, block) = self.try_malloc(bytes, stream);
        ok(status);
        block
    }

    fn try_malloc(&self, bytes: usize, stream: cachalot_stream) -> (cachalot_status, *mut c_void) {
        let mut block = null_mut();
        // SAFETY: the variable outlives the call.
        let status = unsafe { cachalot_malloc(self.0, 0, bytes, stream, &raw mut block) };
        (status, block)
    }

    #[track_caller]
    fn free(&self, block: *mut c_void) {
        ok(cachalot_free(self.0, block));
    }

    /// Returns a statistic by name.
    #[track_caller]
    fn stat(&self, key: &CStr) -> i64 {
        let mut value = 0;
        // SAFETY: text and variable outlive the call.
        ok(unsafe { cachalot_stat(self.0, 0, key.as_ptr(), &raw mut value) });
        value
    }

    /// Returns the statistics as a structure.
    fn stats(&self) -> cachalot_statistics {
        // SAFETY: all zeros are a value of this structure of numbers.
        let mut out: cachalot_statistics = unsafe { std::mem::zeroed() };
        out.struct_size = sized::<cachalot_statistics>();
        // SAFETY: the structure outlives the call.
        ok(unsafe { cachalot_stats(self.0, 0, &raw mut out) });
        out
    }

    fn forecast(&self, bytes: usize, stream: cachalot_stream) -> cachalot_outlook {
        let mut out = cachalot_outlook {
            struct_size: sized::<cachalot_outlook>(),
            address: null_mut(),
            bytes: 0,
            outcome: 0,
            reserved: 0,
        };
        // SAFETY: the structure outlives the call.
        ok(unsafe { cachalot_forecast(self.0, 0, bytes, stream, &raw mut out) });
        out
    }

    fn base_of(&self, address: *const c_void) -> cachalot_block {
        // SAFETY: all zeros are a value of this structure of numbers and pointers.
        let mut out: cachalot_block = unsafe { std::mem::zeroed() };
        out.struct_size = sized::<cachalot_block>();
        // SAFETY: the structure outlives the call.
        ok(unsafe { cachalot_base_of(self.0, address, &raw mut out) });
        out
    }

    fn device_info(&self, device: c_int) -> cachalot_device {
        // SAFETY: all zeros are a value of this structure of numbers.
        let mut out: cachalot_device = unsafe { std::mem::zeroed() };
        out.struct_size = sized::<cachalot_device>();
        // SAFETY: the structure outlives the call.
        ok(unsafe { cachalot_device_info(self.0, device, &raw mut out) });
        out
    }

    /// The settings in force.
    fn config(&self) -> String {
        let mut length = 0;
        // SAFETY: there is no buffer, and the variable outlives the call.
        ok(unsafe { cachalot_config(self.0, 0, null_mut(), 0, &raw mut length) });
        let mut buffer = vec![0xff_u8; length + 1];
        // SAFETY: the buffer is as long as it is said to be.
        ok(unsafe { cachalot_config(self.0, 0, buffer.as_mut_ptr().cast(), buffer.len(), null_mut()) });
        let text = CStr::from_bytes_until_nul(&buffer).expect("ended by NUL");
        assert_eq!(text.count_bytes(), length);
        text.to_string_lossy().into_owned()
    }

    fn configure(&self, config: &CStr) -> cachalot_status {
        // SAFETY: the text outlives the call.
        unsafe { cachalot_configure(self.0, config.as_ptr()) }
    }

    fn pool(&self, flags: u32) -> cachalot_pool {
        let mut pool = cachalot_pool::default();
        // SAFETY: the variable outlives the call.
        ok(unsafe { cachalot_pool_create(self.0, 0, flags, &raw mut pool) });
        pool
    }

    fn users(&self, pool: cachalot_pool) -> u32 {
        let mut users = 0;
        // SAFETY: the variable outlives the call.
        ok(unsafe { cachalot_pool_users(self.0, 0, pool, &raw mut users) });
        users
    }

    /// The snapshot, as the callback receives it.
    fn snapshot(&self) -> serde_json::Value {
        let mut whole = Vec::<u8>::new();
        // SAFETY: the callback takes the vector, which outlives the call.
        ok(unsafe { cachalot_snapshot(self.0, Some(append), (&raw mut whole).cast()) });
        serde_json::from_slice(&whole).expect("it is JSON")
    }
}

#[test]
fn a_block_is_had_described_and_given_back() {
    let subject = Subject::plain();
    let block = subject.malloc(1000, stream(1));
    let found = subject.base_of(block.wrapping_byte_add(1023));
    assert_eq!((found.base, found.bytes, found.requested_bytes), (block, 1024, 1000));
    assert_eq!((found.stream_id, found.device, found.segment_bytes), (0x10000, 0, 2 * MIB));
    assert_eq!(found.segment_base, block);
    assert_eq!(subject.forecast(1000, stream(1)).outcome, CACHALOT_WOULD_HIT);
    assert_eq!(cachalot_free_sized(subject.0, block, 1000), CACHALOT_OK);
    let outlook = subject.forecast(1000, stream(1));
    assert_eq!((outlook.outcome, outlook.address), (CACHALOT_WOULD_HIT, block));
    assert_eq!(subject.malloc(0, stream(1)), null_mut());
    subject.free(null_mut());
}

#[test]
fn requests_that_would_fit_are_told_from_those_that_would_not() {
    let subject = Subject::new(|options| options.limit_bytes = 100 * MIB as u64);
    let ask = |sizes: &[usize]| {
        let mut out = cachalot_fit { struct_size: sized::<cachalot_fit>(), ..cachalot_fit::default() };
        // SAFETY: the list and the structure outlive the call.
        ok(unsafe { cachalot_would_fit(subject.0, 0, sizes.as_ptr(), sizes.len(), null_mut(), &raw mut out) });
        (out.served, out.new_bytes, out.reserved_bytes, out.bound)
    };
    let mib = |count: u64| count * MIB as u64;
    assert_eq!(ask(&[]), (0, 0, 0, CACHALOT_BOUND_NONE));
    assert_eq!(ask(&[1000, 30 * MIB, 60 * MIB]), (3, mib(92), mib(92), CACHALOT_BOUND_NONE));
    assert_eq!(ask(&[1000, 60 * MIB, 60 * MIB, 1]), (2, mib(62), mib(62), CACHALOT_BOUND_LIMIT));
    let block = subject.malloc(60 * MIB, null_mut());
    assert_eq!(ask(&[60 * MIB]), (0, 0, mib(60), CACHALOT_BOUND_LIMIT));
    subject.free(block);
    // The cached segment serves the first request, and a segment of its own the second.
    assert_eq!(ask(&[50 * MIB, 40 * MIB]), (2, mib(40), mib(100), CACHALOT_BOUND_NONE));
    assert_eq!(subject.stats().device_allocs, 1, "nothing was obtained for an answer");
    // The device's answer to the question about its memory is the bound, once the limit is gone.
    assert_eq!(cachalot_set_limit(subject.0, 0, CACHALOT_NO_LIMIT), CACHALOT_OK);
    let free = usize::try_from(subject.device_info(0).free_bytes).expect("an amount");
    assert_eq!(ask(&[free + 61 * MIB]).3, CACHALOT_BOUND_DEVICE);
    assert_eq!(ask(&[free + 60 * MIB]).3, CACHALOT_BOUND_NONE);
}

#[test]
fn forecasts_say_what_comes_first() {
    let subject = Subject::new(|options| options.limit_bytes = 64 * MIB as u64);
    let outlook = subject.forecast(30 * MIB, null_mut());
    assert_eq!((outlook.outcome, outlook.bytes), (CACHALOT_WOULD_OBTAIN, 30 * MIB));
    let block = subject.malloc(30 * MIB, null_mut());
    assert_eq!(subject.forecast(50 * MIB, null_mut()).outcome, CACHALOT_WOULD_FAIL);
    subject.free(block);
    let outlook = subject.forecast(50 * MIB, null_mut());
    assert_eq!((outlook.outcome, outlook.address), (CACHALOT_WOULD_RELEASE, block));
    ok(subject.configure(c"expandable_segments:True"));
    assert_eq!(subject.forecast(MIB, stream(9)).outcome, CACHALOT_WOULD_EXPAND);
}

/// Nobody told of the capture: no route of the allocator is in force.
#[test]
fn a_block_that_a_capturing_stream_uses_is_accepted_and_comes_back_after_the_capture() {
    let subject = Subject::plain();
    let block = subject.malloc(5000, stream(1));
    ok(cachalot_record_stream(subject.0, block, stream(2)));
    ok(cachalot_simulate_capture(subject.0, 0, stream(2), 1));
    subject.free(block);
    assert_eq!(cachalot_free(subject.0, block), CACHALOT_ERROR_INVALID_POINTER);
    ok(cachalot_process_events(subject.0, 0));
    ok(cachalot_empty_cache(subject.0, 0));
    let stats = subject.stats();
    assert_eq!((stats.allocations.current, stats.active_blocks.current), (0, 1));
    ok(cachalot_simulate_capture(subject.0, 0, stream(2), 0));
    ok(cachalot_empty_cache(subject.0, 0));
    assert_eq!(subject.stats().reserved_bytes.current, 0);
}

#[test]
fn a_block_that_another_stream_uses_comes_back_when_that_stream_is_done() {
    let subject = Subject::plain();
    let block = subject.malloc(5000, stream(1));
    ok(cachalot_record_stream(subject.0, block, stream(2)));
    subject.free(block);
    let stats = subject.stats();
    assert_eq!((stats.allocations.current, stats.active_blocks.current), (0, 1));
    let other = subject.malloc(5000, stream(1));
    assert_ne!(other, block);
    ok(cachalot_simulate_progress(subject.0, 0, stream(2)));
    ok(cachalot_process_events(subject.0, 0));
    assert_eq!(subject.stats().active_blocks.current, 1);
    let again = subject.malloc(5000, stream(1));
    assert_eq!(again, block);
    subject.free(again);
    subject.free(other);
    ok(cachalot_stream_destroyed(subject.0, 0, stream(1)));
    assert_eq!(subject.stats().reserved_bytes.current, 0);
    for handle in [0, 1] {
        let destroyed = cachalot_stream_destroyed(subject.0, 0, without_provenance_mut(handle));
        assert_eq!(destroyed, CACHALOT_ERROR_INVALID_STREAM, "{handle}");
    }
}

#[test]
fn a_thread_reports_its_own_stream_before_it_ends() {
    let subject = Subject::plain();
    let per_thread = || without_provenance_mut(2);
    // The thread may go on, and report the stream again.
    for _report in 0..2 {
        let block = subject.malloc(100, per_thread());
        subject.free(block);
        assert_ne!(subject.stats().reserved_bytes.current, 0);
        ok(cachalot_stream_destroyed(subject.0, 0, per_thread()));
        assert_eq!(subject.stats().reserved_bytes.current, 0);
    }
}

#[test]
fn default_streams_are_known_by_all_their_handles() {
    let subject = Subject::plain();
    let blocks = [0, 1].map(|handle| subject.malloc(100, without_provenance_mut(handle)));
    let ids = blocks.map(|block| subject.base_of(block).stream_id);
    assert_eq!(ids, [0, 0]);
    let own = || {
        let block = subject.malloc(100, without_provenance_mut(2));
        let id = subject.base_of(block).stream_id;
        subject.free(block);
        id
    };
    let here = own();
    assert_eq!((here, here >> 48), (own(), 0xffff));
    for block in blocks {
        subject.free(block);
    }
}

#[test]
fn limits_and_trims_and_the_cache_are_obeyed() {
    let subject = Subject::plain();
    let blocks = [30, 40, 50].map(|mib| subject.malloc(mib * MIB, null_mut()));
    for block in blocks {
        subject.free(block);
    }
    assert_eq!(subject.stats().reserved_bytes.current, 120 * MIB as i64);
    ok(cachalot_trim(subject.0, 0, 75 * MIB));
    assert_eq!(subject.stats().reserved_bytes.current, 70 * MIB as i64);
    ok(cachalot_empty_cache(subject.0, 0));
    assert_eq!(subject.stats().reserved_bytes.current, 0);
    ok(cachalot_set_limit(subject.0, 0, 20 * MIB as u64));
    assert_eq!(subject.device_info(0).limit_bytes, 20 * MIB as u64);
    assert_eq!(subject.try_malloc(30 * MIB, null_mut()), (CACHALOT_ERROR_OUT_OF_MEMORY, null_mut()));
    assert!(last_error().contains("The memory limit is 20 MiB. "), "{}", last_error());
    ok(cachalot_set_memory_fraction(subject.0, 0, 0.5));
    assert_eq!(subject.device_info(0).limit_bytes, 8 << 30);
    ok(cachalot_set_limit(subject.0, 0, CACHALOT_NO_LIMIT));
    assert_eq!(subject.device_info(0).limit_bytes, CACHALOT_NO_LIMIT);
    ok(cachalot_set_caching(subject.0, 0, 0));
    subject.free(subject.malloc(1000, null_mut()));
    assert_eq!(subject.stats().reserved_bytes.current, 0);
    ok(cachalot_set_caching(subject.0, 0, 1));
    subject.free(subject.malloc(1000, null_mut()));
    assert_eq!(subject.stats().reserved_bytes.current, 2 * MIB as i64);
}

#[test]
fn options_are_obeyed() {
    let ordinals: [c_int; 2] = [7, 3];
    let config = CString::new("max_split_size_mb:64,expandable_segments:True").expect("no NUL");
    let subject = Subject::new(|options| {
        options.device_count = 2;
        options.devices = ordinals.as_ptr();
        options.config = config.as_ptr();
        options.limit_bytes = 100 * MIB as u64;
        options.simulated_bytes = 1 << 30;
    });
    let mut count = 0;
    // SAFETY: the variable outlives the call.
    ok(unsafe { cachalot_device_count(subject.0, &raw mut count) });
    assert_eq!(count, 2);
    for (device, ordinal) in [(0, 7), (1, 3)] {
        let info = subject.device_info(device);
        assert_eq!((info.ordinal, info.simulated, info.virtual_memory), (ordinal, 1, 1));
        assert_eq!((info.total_bytes, info.free_bytes), (1 << 30, 1 << 30));
        assert_eq!((info.limit_bytes, info.reserved_bytes, info.leaked_bytes), (100 * MIB as u64, 0, 0));
        ok(cachalot_health(subject.0, device));
        ok(cachalot_enable_peer_access(subject.0, device, 1 - device));
    }
    assert_eq!(subject.config(), "max_split_size_mb:64,expandable_segments:True");
    let direct = Subject::new(|options| options.flags |= CACHALOT_NO_CACHING);
    direct.free(direct.malloc(1000, null_mut()));
    assert_eq!(direct.stats().device_frees, 1);
}

#[test]
fn the_policy_is_chosen_by_name_and_stays() {
    // What a request of 66 KiB is served by.
    for (policy, kib) in [
        ("caching", 66),
        ("bfc", 66),
        ("buddy", 128),
        ("size_class", 66),
        ("slab", 96),
        ("stitched", 66),
        ("direct", 66),
    ] {
        let config = CString::new(format!("policy:{policy}")).expect("no NUL");
        let subject = Subject::new(|options| options.config = config.as_ptr());
        let block = subject.malloc(66 << 10, null_mut());
        assert_eq!(subject.base_of(block).bytes, kib << 10, "{policy}");
        assert_eq!(subject.stat(c"requested_bytes.all.current"), 66 << 10);
        subject.free(block);
        ok(cachalot_empty_cache(subject.0, 0));
        assert_eq!(subject.stat(c"reserved_bytes.all.current"), 0, "{policy}");
        let other = if policy == "bfc" { c"policy:slab" } else { c"policy:bfc" };
        assert_eq!(subject.configure(other), CACHALOT_ERROR_INVALID_CONFIG);
        assert!(last_error().contains("a policy and its options stay"), "{}", last_error());
    }
    let mut handle = null_mut();
    for (config, accepted) in [
        (c"policy:tlsf", "only `caching`, `bfc`, `buddy`, `size_class`, `slab`, `stitched`, `direct` or `planned`"),
        (c"policy:buddy,chunk_mb:4", "its keys are arena_mb, backend, "),
    ] {
        let options = cachalot_options { flags: CACHALOT_SIMULATED, config: config.as_ptr(), ..cachalot_options::INIT };
        // SAFETY: both variables outlive the call, and so does what the options point to.
        let status = unsafe { cachalot_create(&raw const options, &raw mut handle) };
        assert_eq!(status, CACHALOT_ERROR_INVALID_CONFIG);
        assert!(last_error().contains(accepted), "{}", last_error());
    }
}

#[test]
fn settings_change_at_run_time_as_in_pytorch() {
    let subject = Subject::plain();
    assert_eq!(subject.config(), "");
    ok(subject.configure(c"max_split_size_mb:64,expandable_segments:True"));
    ok(subject.configure(c"garbage_collection_threshold:0.5"));
    assert_eq!(subject.config(), "garbage_collection_threshold:0.5,expandable_segments:True");
    assert_eq!(subject.configure(c"max_split_size_mb:1"), CACHALOT_ERROR_INVALID_CONFIG);
    assert_eq!(subject.config(), "garbage_collection_threshold:0.5,expandable_segments:True");
    ok(subject.configure(c"per_process_memory_fraction:0.25"));
    assert_eq!(subject.device_info(0).limit_bytes, 4 << 30);
    // Other settings leave the limit alone.
    ok(cachalot_set_limit(subject.0, 0, 1 << 30));
    ok(subject.configure(c"expandable_segments:False"));
    assert_eq!(subject.device_info(0).limit_bytes, 1 << 30);
}

#[test]
fn pools_keep_their_blocks_apart() {
    let subject = Subject::plain();
    let pool = subject.pool(0);
    assert_eq!(subject.users(pool), 1);
    let outside = subject.malloc(100, stream(1));
    subject.free(outside);
    ok(cachalot_pool_begin(subject.0, 0, pool, CACHALOT_ROUTE_STREAM, stream(1)));
    let inside = subject.malloc(100, stream(1));
    assert_ne!(inside, outside);
    let elsewhere = subject.malloc(100, stream(2));
    ok(cachalot_pool_end(subject.0, 0, pool));
    assert_eq!(subject.malloc(100, stream(1)), outside);
    subject.free(outside);
    subject.free(elsewhere);
    assert_eq!((subject.users(pool), cachalot_pool_empty(subject.0, 0, pool)), (2, CACHALOT_OK));
    assert_eq!(subject.base_of(inside).base, inside);

    // By thread: this one's requests, not another one's.
    ok(cachalot_pool_begin(subject.0, 0, pool, CACHALOT_ROUTE_THREAD, null_mut()));
    let own = subject.malloc(100, stream(3));
    let handle = subject.0.addr();
    let other = std::thread::spawn(move || {
        let subject = std::mem::ManuallyDrop::new(Subject(without_provenance_mut(handle)));
        subject.malloc(100, stream(3)).addr()
    });
    let other: *mut c_void = without_provenance_mut(other.join().expect("it returns"));
    assert_ne!(subject.base_of(own).segment_base, subject.base_of(other).segment_base);
    ok(cachalot_pool_end(subject.0, 0, pool));
    for block in [inside, own, other] {
        subject.free(block);
    }

    // A name of the program's own.
    let named = cachalot_pool { first: 7, second: 9 };
    ok(cachalot_pool_retain(subject.0, 0, named, CACHALOT_POOL_NO_SPLIT));
    ok(cachalot_pool_retain(subject.0, 0, named, 0));
    assert_eq!(subject.users(named), 2);
    for (pool, users) in [(named, 2), (pool, 3)] {
        (0..users).for_each(|_| ok(cachalot_pool_release(subject.0, 0, pool)));
    }
    ok(cachalot_empty_cache(subject.0, 0));
    assert_eq!(cachalot_pool_release(subject.0, 0, pool), CACHALOT_ERROR_UNKNOWN_POOL);
    assert_eq!(subject.stats().reserved_bytes.current, 0);
}

#[test]
fn a_captured_pool_is_kept_until_its_graph_is_gone() {
    let subject = Subject::plain();
    let pool = subject.pool(0);
    ok(cachalot_capture_begin(subject.0, 0, pool, CACHALOT_ROUTE_STREAM, stream(1)));
    ok(cachalot_simulate_capture(subject.0, 0, stream(1), 1));
    let block = subject.malloc(3 * MIB, stream(1));
    subject.free(block);
    ok(cachalot_simulate_capture(subject.0, 0, stream(1), 0));
    ok(cachalot_capture_end(subject.0, 0, pool));
    ok(cachalot_pool_release(subject.0, 0, pool));
    // The graph may be launched still: nothing else gets its memory, and it is not given back.
    ok(cachalot_empty_cache(subject.0, 0));
    let other = subject.malloc(3 * MIB, stream(1));
    assert_ne!(other, block);
    subject.free(other);
    ok(cachalot_empty_cache(subject.0, 0));
    assert_eq!(subject.stats().reserved_bytes.current, 20 * MIB as i64);
    ok(cachalot_pool_release(subject.0, 0, pool));
    ok(cachalot_empty_cache(subject.0, 0));
    assert_eq!(subject.stats().reserved_bytes.current, 0);
}

#[test]
fn what_is_still_held_at_the_end_is_told() {
    for keep_block in [true, false] {
        let subject = std::mem::ManuallyDrop::new(Subject::plain());
        let pool = subject.pool(0);
        ok(cachalot_pool_begin(subject.0, 0, pool, CACHALOT_ROUTE_ALL, null_mut()));
        let block = subject.malloc(1000, null_mut());
        ok(cachalot_pool_end(subject.0, 0, pool));
        if !keep_block {
            // The pool still has users: a graph may use what it holds.
            subject.free(block);
        }
        assert_eq!(cachalot_destroy(subject.0), CACHALOT_ERROR_STILL_HELD);
        let blocks = format!("{} blocks", u32::from(keep_block));
        assert!(last_error().contains(&blocks) && last_error().contains("2097152 bytes"), "{}", last_error());
        assert_eq!(last_error().ends_with("a private pool has users, or pages are pinned"), !keep_block);
        assert_eq!(cachalot_destroy(subject.0), CACHALOT_ERROR_INVALID_HANDLE);
    }
}

/// Gathers statistics by name.
unsafe extern "C" fn gather(userdata: *mut c_void, key: *const c_char, value: i64) -> c_int {
    // SAFETY: the list below, which nobody else uses during the call.
    let list = unsafe { &mut *userdata.cast::<Vec<(String, i64)>>() };
    // SAFETY: the library's texts are ended by NUL.
    list.push((unsafe { CStr::from_ptr(key) }.to_string_lossy().into_owned(), value));
    0
}

#[test]
fn statistics_are_the_same_as_a_structure_and_by_name() {
    let subject = Subject::plain();
    let blocks = [100, 5000, 3 * MIB].map(|bytes| subject.malloc(bytes, null_mut()));
    subject.free(blocks[1]);
    ok(cachalot_record_stream(subject.0, blocks[2], stream(1)));
    subject.free(blocks[2]);
    let stats = subject.stats();
    let named: [(&str, cachalot_counter); 8] = [
        ("allocation", stats.allocations),
        ("allocated_bytes", stats.allocated_bytes),
        ("active", stats.active_blocks),
        ("active_bytes", stats.active_bytes),
        ("requested_bytes", stats.requested_bytes),
        ("inactive_split_bytes", stats.inactive_split_bytes),
        ("segment", stats.segments),
        ("reserved_bytes", stats.reserved_bytes),
    ];
    let by_name = |name: &str, field: &str| subject.stat(&CString::new(format!("{name}.all.{field}")).expect("no NUL"));
    for (name, counter) in named {
        let cachalot_counter { current, peak, allocated, freed } = counter;
        let found = ["current", "peak", "allocated", "freed"].map(|field| by_name(name, field));
        assert_eq!([current, peak, allocated, freed], found, "{name}");
    }
    assert_eq!((stats.allocations.current, stats.allocations.peak, stats.active_blocks.current), (1, 3, 2));
    assert_eq!((stats.requested_bytes.current, stats.segments.current), (100 + 3 * MIB as i64, 2));
    assert_eq!(subject.stat(c"num_device_alloc"), stats.device_allocs as i64);

    let mut list = Vec::<(String, i64)>::new();
    // SAFETY: the callback takes the list, which outlives the call.
    ok(unsafe { cachalot_stats_for_each(subject.0, 0, Some(gather), (&raw mut list).cast()) });
    assert!(
        list.len() > 70
            && list.iter().all(|(key, value)| subject.stat(&CString::new(&**key).expect("no NUL")) == *value)
    );

    ok(cachalot_reset_peaks(subject.0, 0));
    ok(cachalot_reset_accumulated(subject.0, 0));
    let stats = subject.stats();
    assert_eq!((stats.allocations.peak, stats.allocations.allocated, stats.device_allocs), (1, 0, 0));
    subject.free(blocks[0]);
}

#[test]
fn nothing_beyond_a_structure_is_written() {
    let subject = Subject::plain();
    // With room behind it that is not the library's.
    let mut out = [0x5a5a_5a5a_5a5a_5a5a_u64; 64];
    out[0] = sized::<cachalot_statistics>() as u64;
    // SAFETY: the structure is as long as it says.
    ok(unsafe { cachalot_stats(subject.0, 0, out.as_mut_ptr().cast()) });
    let words = sized::<cachalot_statistics>() / 8;
    assert_eq!(out[0], sized::<cachalot_statistics>() as u64);
    assert!(out[1..words].iter().all(|&word| word == 0));
    assert!(out[words..].iter().all(|&word| word == 0x5a5a_5a5a_5a5a_5a5a));
}

/// Gathers events.
unsafe extern "C" fn gather_events(userdata: *mut c_void, entry: *const cachalot_trace_entry) -> c_int {
    // SAFETY: the list below, which nobody else uses during the call.
    let list = unsafe { &mut *userdata.cast::<Vec<cachalot_trace_entry>>() };
    // SAFETY: the entry lasts until the callback returns.
    list.push(unsafe { *entry });
    0
}

#[test]
fn traces_tell_what_happened_in_order() {
    let subject = Subject::plain();
    ok(cachalot_trace_start(subject.0, 0, 4));
    let block = subject.malloc(1000, stream(1));
    subject.free(block);
    ok(cachalot_empty_cache(subject.0, 0));
    let mut list = Vec::<cachalot_trace_entry>::new();
    // SAFETY: the callback takes the list, which outlives the call.
    ok(unsafe { cachalot_trace_for_each(subject.0, 0, Some(gather_events), (&raw mut list).cast()) });
    let told: Vec<_> = list.iter().map(|entry| (entry.action, entry.address as usize, entry.bytes)).collect();
    let at = block.addr();
    // The oldest of five, the segment, is gone: four are kept.
    let expected = [
        (CACHALOT_ACTION_ALLOC, at, 1000),
        (CACHALOT_ACTION_FREE_REQUESTED, at, 1000),
        (CACHALOT_ACTION_FREE_COMPLETED, at, 1000),
        (CACHALOT_ACTION_SEGMENT_FREE, at, 2 * MIB as u64),
    ];
    assert_eq!(told, expected);
    assert!(list.iter().all(|entry| entry.stream_id == 0x10000 && entry.time_us > 1_600_000_000_000_000));
    ok(cachalot_trace_start(subject.0, 0, 0));
    list.clear();
    // SAFETY: as above.
    ok(unsafe { cachalot_trace_for_each(subject.0, 0, Some(gather_events), (&raw mut list).cast()) });
    assert!(list.is_empty());
}

#[test]
fn snapshots_are_json_with_pytorchs_keys() {
    let subject = Subject::plain();
    ok(subject.configure(c"max_split_size_mb:64"));
    ok(cachalot_trace_start(subject.0, 0, 100));
    let block = subject.malloc(1000, stream(1));
    let (status, _) = subject.try_malloc(100 << 30, stream(1));
    assert_eq!(status, CACHALOT_ERROR_OUT_OF_MEMORY);
    let snapshot = subject.snapshot();
    let at = block.addr();
    let expected = serde_json::json!([{
        "device": 0, "address": at, "total_size": 2 * MIB, "allocated_size": 1024, "active_size": 1024,
        "requested_size": 1000, "stream": 0x10000, "segment_type": "small", "segment_pool_id": [0, 0],
        "is_expandable": false, "frames": [],
        "blocks": [
            { "address": at, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": [] },
            { "address": at + 1024, "size": 2 * MIB - 1024, "requested_size": 0, "state": "inactive", "frames": [] },
        ],
    }]);
    assert_eq!(snapshot["segments"], expected);
    let actions: Vec<_> = snapshot["device_traces"][0].as_array().expect("a list").iter().collect();
    assert_eq!(actions.iter().map(|entry| &entry["action"]).collect::<Vec<_>>(), ["segment_alloc", "alloc", "oom"]);
    assert_eq!((&actions[1]["addr"], &actions[1]["size"]), (&at.into(), &1000.into()));
    assert!(actions[2]["addr"].is_null() && actions[2]["device_free"].is_u64());
    assert_eq!(snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"], "max_split_size_mb:64");

    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("snapshot.json");
    let path = CString::new(file.to_str().expect("UTF-8")).expect("no NUL");
    // SAFETY: the text outlives the call.
    ok(unsafe { cachalot_snapshot_to_file(subject.0, path.as_ptr()) });
    let written: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("it was written")).expect("JSON");
    assert_eq!(written, snapshot);
    subject.free(block);
}

/// How a callback describes stacks, and how often it was asked.
#[derive(Default)]
struct Describer {
    subject: Option<*mut cachalot_allocator>,
    asked: Vec<cachalot_action>,
}

unsafe extern "C" fn describe(userdata: *mut c_void, stack: *mut cachalot_stack, action: cachalot_action) {
    // SAFETY: the describer below, which nobody else uses during the call.
    let describer = unsafe { &mut *userdata.cast::<Describer>() };
    describer.asked.push(action);
    if let Some(allocator) = describer.subject {
        // Requests of a callback are recorded, and lead to no further question.
        let mut block = null_mut();
        // SAFETY: the variable outlives the call.
        ok(unsafe { cachalot_malloc(allocator, 0, 5000, stream(2), &raw mut block) });
        ok(cachalot_free(allocator, block));
    }
    if action == CACHALOT_ACTION_FREE_REQUESTED {
        return;
    }
    let line = c_int::try_from(describer.asked.len()).expect("few");
    // SAFETY: the stack is the one that this callback got; the texts are ended by NUL, or NULL.
    unsafe { cachalot_stack_push(stack, c"forward \xff".as_ptr(), c"model.py".as_ptr(), line) };
    // SAFETY: as above.
    unsafe { cachalot_stack_push(stack, null(), null(), -1) };
}

#[test]
fn stacks_are_described_by_the_program_and_told_with_blocks_segments_and_events() {
    let subject = Subject::plain();
    let mut describer = Describer { subject: Some(subject.0), asked: Vec::new() };
    // SAFETY: the describer outlives the allocator's last call.
    ok(unsafe { cachalot_on_stack(subject.0, Some(describe), (&raw mut describer).cast()) });
    let early = subject.malloc(1000, stream(1));
    assert!(describer.asked.is_empty(), "nothing is recorded yet");
    ok(cachalot_trace_start(subject.0, 0, 100));
    let block = subject.malloc(3 * MIB, stream(1));
    let other = subject.malloc(4 * MIB, stream(1));
    subject.free(other);
    ok(cachalot_record_stream(subject.0, block, stream(3)));
    subject.free(block);
    let (alloc, free) = (CACHALOT_ACTION_ALLOC, CACHALOT_ACTION_FREE_REQUESTED);
    assert_eq!(describer.asked, [alloc, alloc, free, free]);
    let snapshot = subject.snapshot();
    let stack = |line: c_int| {
        serde_json::json!([{"name": "forward \u{fffd}", "filename": "model.py", "line": line},
            {"name": "", "filename": "", "line": -1}])
    };
    let none = serde_json::json!([]);
    for segment in snapshot["segments"].as_array().expect("a list") {
        for entry in segment["blocks"].as_array().expect("a list") {
            let pending = entry["address"] == block.addr();
            assert_eq!(entry["frames"], if pending { stack(1) } else { none.clone() }, "{entry}");
        }
        let large = segment["segment_type"] == "large";
        assert_eq!(segment["frames"], if large { stack(1) } else { none.clone() }, "{segment}");
    }
    let events = snapshot["device_traces"][0].as_array().expect("a list").iter();
    let told: Vec<_> = events
        .filter(|event| event["stream"] == 0x10000)
        .map(|event| (event["action"].as_str().expect("a text"), event["frames"].clone()))
        .collect();
    assert_eq!(
        told,
        [
            ("segment_alloc", stack(1)),
            ("alloc", stack(1)),
            ("alloc", stack(2)),
            ("free_requested", stack(2)),
            ("free_completed", stack(2)),
            ("free_requested", stack(1)),
        ]
    );
    // SAFETY: nobody is set.
    ok(unsafe { cachalot_on_stack(subject.0, None, null_mut()) });
    subject.free(early);
    ok(cachalot_simulate_progress(subject.0, 0, stream(3)));
    ok(cachalot_process_events(subject.0, 0));
    assert_eq!(describer.asked.len(), 4);
    let events = subject.snapshot()["device_traces"][0].as_array().expect("a list").clone();
    let frames: Vec<_> = events.iter().rev().take(3).map(|event| event["frames"].clone()).collect();
    assert_eq!(frames, [stack(1), none.clone(), none]);
}

#[test]
fn a_stack_of_another_place_is_nobodys() {
    // SAFETY: a stack that is none is passed over.
    unsafe { cachalot_stack_push(null_mut(), c"a".as_ptr(), c"b".as_ptr(), 1) };
}

#[test]
fn snapshots_are_pickles_too() {
    let subject = Subject::plain();
    ok(cachalot_trace_start(subject.0, 0, 100));
    let block = subject.malloc(1000, stream(1));
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("snapshot.pickle");
    let path = CString::new(file.to_str().expect("UTF-8")).expect("no NUL");
    // SAFETY: the text outlives the call.
    ok(unsafe { cachalot_snapshot_to_file(subject.0, path.as_ptr()) });
    let pickled = std::fs::read(&file).expect("it was written");
    let read: serde_json::Value = serde_pickle::from_slice(&pickled, serde_pickle::DeOptions::new()).expect("a pickle");
    assert_eq!(read, subject.snapshot());
    let mut whole = Vec::<u8>::new();
    // SAFETY: the callback takes the vector, which outlives the call.
    let status = unsafe { cachalot_snapshot_as(subject.0, CACHALOT_PICKLE, Some(append), (&raw mut whole).cast()) };
    ok(status);
    assert_eq!(whole, pickled);
    for format in [0, 3, -1] {
        // SAFETY: as above.
        let status = unsafe { cachalot_snapshot_as(subject.0, format, Some(append), (&raw mut whole).cast()) };
        assert_eq!(status, CACHALOT_ERROR_INVALID_ARGUMENT);
    }
    subject.free(block);
}

#[test]
fn texts_of_the_library_are_what_the_header_says() {
    // SAFETY: the library's texts last for ever.
    let text = |pointer: *const c_char| unsafe { CStr::from_ptr(pointer) }.to_str().expect("ASCII");
    assert_eq!(text(cachalot_status_name(CACHALOT_ERROR_BUSY)), "CACHALOT_ERROR_BUSY");
    assert_eq!(text(cachalot_status_name(1)), "CACHALOT_ERROR_UNKNOWN");
    assert_eq!(text(cachalot_status_name(i32::MIN)), "CACHALOT_ERROR_UNKNOWN");
    assert_eq!(text(cachalot_status_text(CACHALOT_OK)), "success");
    assert!(!text(cachalot_status_text(-1)).is_empty());
    assert_eq!(text(cachalot_version_string()), env!("CARGO_PKG_VERSION"));
    // Of a thread in which nothing has failed.
    let fresh = std::thread::spawn(move || (last_error(), cachalot_last_driver_code()));
    assert_eq!(fresh.join().expect("it returns"), (String::new(), 0));
    assert_eq!(cachalot_free(null(), null_mut()), CACHALOT_ERROR_NULL);
    assert_eq!(last_error(), "the allocator is NULL");
}

#[test]
fn threads_of_one_allocator_get_blocks_of_their_own() {
    let subject = Subject::plain();
    let handle = subject.0.addr();
    let work = move |thread: usize| {
        let subject = std::mem::ManuallyDrop::new(Subject(without_provenance_mut(handle)));
        let mut held = Vec::new();
        for round in 0..3000_usize {
            let own = stream(1 + (thread + round) % 3);
            held.push((subject.malloc(512 << (round % 8), own), 512_usize << (round % 8)));
            if round % 3 == 0 {
                let (block, bytes) = held.swap_remove(round % held.len());
                ok(cachalot_free_sized(subject.0, block, bytes));
            }
        }
        held.into_iter().map(|(block, bytes)| (block.addr(), bytes)).collect::<Vec<_>>()
    };
    let threads: Vec<_> = (0..4).map(|thread| std::thread::spawn(move || work(thread))).collect();
    let mut all: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().expect("it returns")).collect();
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "two blocks overlap");
    assert_eq!(subject.stats().allocations.current, all.len() as i64);
    ok(cachalot_check(subject.0));
    for (block, bytes) in all {
        ok(cachalot_free_sized(subject.0, without_provenance_mut(block), bytes));
    }
}
