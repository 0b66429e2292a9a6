//! Statistics, as a structure and by name.

use crate::common::subject::{MIB, Subject, last_error, ok, stream};
use cachalot::Statistic;
use cachalot::c::abi::{cachalot_counter, cachalot_statistics};
use cachalot::c::capi::{
    cachalot_get_statistics, cachalot_record_stream, cachalot_reset_accumulated, cachalot_reset_peaks,
};
use cachalot::c::status::CACHALOT_ERROR_UNKNOWN_KEY;
use std::ffi::CString;
use std::ptr::null_mut;

#[test]
fn an_unknown_statistic_is_answered_by_the_nearest_name() {
    let subject = Subject::plain();
    for (name, meant) in [
        (c"allocated_bytes.all.curent", ", did you mean `allocated_bytes.all.current`?"),
        (c"num_oom", ", did you mean `num_ooms`?"),
        (c"nothing like it", ""),
    ] {
        assert_eq!(subject.try_stat(name), CACHALOT_ERROR_UNKNOWN_KEY);
        let name = name.to_str().expect("text");
        assert!(last_error().ends_with(&format!("no statistic is called `{name}`{meant}")), "{}", last_error());
    }
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

    let list = subject.all_stats();
    assert!(
        list.len() > 70
            && list.iter().all(|(key, value)| subject.stat(&CString::new(&**key).expect("no NUL")) == *value)
    );

    let keys: Vec<_> = list.iter().map(|(key, _)| &**key).collect();
    let own = &keys[keys.len() - Statistic::ALL.len()..];
    assert_eq!(own, Statistic::ALL.iter().map(|statistic| statistic.name).collect::<Vec<_>>(), "behind PyTorch's");

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
    out[0] = size_of::<cachalot_statistics>() as u64;
    // SAFETY: the structure is as long as it says.
    ok(unsafe { cachalot_get_statistics(subject.0, 0, out.as_mut_ptr().cast()) });
    let words = size_of::<cachalot_statistics>() / 8;
    assert_eq!(out[0], size_of::<cachalot_statistics>() as u64);
    assert!(out[1..words].iter().all(|&word| word == 0));
    assert!(out[words..].iter().all(|&word| word == 0x5a5a_5a5a_5a5a_5a5a));
}
