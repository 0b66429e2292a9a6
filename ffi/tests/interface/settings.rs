//! Limits, options, policies and settings.

use crate::common::subject::{MIB, Subject, last_error, ok};
use cachalot::c::abi::{CACHALOT_NO_CACHING, CACHALOT_NO_LIMIT, cachalot_setting};
use cachalot::c::capi::{
    cachalot_check_health, cachalot_empty_cache, cachalot_enable_peer_access, cachalot_get_device_count,
    cachalot_set_caching, cachalot_set_limit, cachalot_set_memory_fraction, cachalot_trim, cachalot_visit_settings,
};
use cachalot::c::status::{
    CACHALOT_ERROR_INVALID_CONFIG, CACHALOT_ERROR_NULL, CACHALOT_ERROR_OUT_OF_MEMORY, CACHALOT_ERROR_STOPPED,
};
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null_mut;

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
    assert_eq!(subject.try_malloc(0, 30 * MIB, null_mut()), (CACHALOT_ERROR_OUT_OF_MEMORY, null_mut()));
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
    ok(unsafe { cachalot_get_device_count(subject.0, &raw mut count) });
    assert_eq!(count, 2);
    for (device, ordinal) in [(0, 7), (1, 3)] {
        let info = subject.device_info(device);
        assert_eq!((info.ordinal, info.simulated, info.virtual_memory), (ordinal, 1, 1));
        assert_eq!((info.total_bytes, info.free_bytes), (1 << 30, 1 << 30));
        assert_eq!((info.limit_bytes, info.reserved_bytes, info.leaked_bytes), (100 * MIB as u64, 0, 0));
        ok(cachalot_check_health(subject.0, device));
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
        let subject = Subject::with_config(&config);
        let block = subject.malloc(66 << 10, null_mut());
        assert_eq!(subject.base_of(block).bytes, kib << 10, "{policy}");
        assert_eq!(subject.stat(c"requested_bytes.all.current"), 66 << 10);
        subject.free(block);
        // Only `policy:direct` keeps nothing.
        assert_eq!(subject.stat(c"reserved_bytes.all.current") == 0, policy == "direct", "{policy}");
        ok(cachalot_empty_cache(subject.0, 0));
        assert_eq!(subject.stat(c"reserved_bytes.all.current"), 0, "{policy}");
        let other = if policy == "bfc" { c"policy:slab" } else { c"policy:bfc" };
        assert_eq!(subject.configure(other), CACHALOT_ERROR_INVALID_CONFIG);
        assert!(last_error().contains("a policy and its options stay"), "{}", last_error());
    }
    for (config, accepted) in [
        (c"policy:tlsf", "policy does not take `tlsf`, only `caching`, "),
        (c"policy:buddy,chunk_mb:4", "its keys are arena_mb, backend, "),
    ] {
        let refused = Subject::try_new(|options| options.config = config.as_ptr());
        assert_eq!(refused.err(), Some(CACHALOT_ERROR_INVALID_CONFIG));
        assert!(last_error().contains(accepted), "{}", last_error());
    }
}

#[test]
fn settings_change_at_run_time_as_in_pytorch() {
    let subject = Subject::plain();
    assert_eq!(subject.config(), "policy:caching", "no setting, in words that may be configured");
    ok(subject.configure(c"policy:caching"));
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

/// The settings that a callback is told of: each with its texts.
type Told = Vec<[String; 6]>;

/// Takes a setting; asks to stop after the second.
unsafe extern "C" fn take(userdata: *mut c_void, setting: *const cachalot_setting) -> c_int {
    // SAFETY: the caller's list, without another user during the call.
    let told = unsafe { &mut *userdata.cast::<(Told, usize)>() };
    // SAFETY: valid until the callback returns.
    let setting = unsafe { &*setting };
    assert_eq!(setting.struct_size, size_of::<cachalot_setting>());
    let cachalot_setting { key, policies, values, default_value, example, effect, .. } = *setting;
    // SAFETY: texts that are valid until the callback returns.
    let text = |text| unsafe { CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned();
    told.0.push([key, policies, values, default_value, example, effect].map(text));
    c_int::from(told.0.len() == told.1)
}

#[test]
#[cfg_attr(miri, ignore = "an allocator for each of some fifty settings takes many minutes there")]
fn the_list_of_settings_is_the_librarys() {
    let mut told: (Told, usize) = (Vec::new(), usize::MAX);
    // SAFETY: the callback takes the list, which outlives the call.
    ok(unsafe { cachalot_visit_settings(Some(take), (&raw mut told).cast()) });
    let keys: Vec<_> = told.0.iter().map(|[key, ..]| key.as_str()).collect();
    assert_eq!(keys, cachalot::settings().iter().map(|setting| setting.key).collect::<Vec<_>>());
    assert!(told.0.iter().flatten().all(|text| !text.is_empty()), "{told:?}");
    let slack = told.0.iter().find(|[key, ..]| key == "slack").expect("a setting of `stitched`");
    assert_eq!(slack[..4], ["slack", "stitched", "a number from 0 to 1", "0.012"]);
    for [key, policies, _, _, example, _] in &told.0 {
        for policy in policies.split(' ') {
            let policy = if key == "policy" { String::new() } else { format!("policy:{policy},") };
            let config = CString::new(format!("{policy}{key}:{example}")).expect("no NUL");
            drop(Subject::new(|options| options.config = config.as_ptr()));
        }
    }
    let mut two: (Told, usize) = (Vec::new(), 2);
    // SAFETY: as above.
    let status = unsafe { cachalot_visit_settings(Some(take), (&raw mut two).cast()) };
    assert_eq!((status, &two.0[..]), (CACHALOT_ERROR_STOPPED, &told.0[..2]));
    // SAFETY: as above.
    assert_eq!(unsafe { cachalot_visit_settings(None, null_mut()) }, CACHALOT_ERROR_NULL);
}
