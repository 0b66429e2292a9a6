//! Tests of parsing, writing and changing settings.

extern crate std;

use super::*;
use crate::config::rounding::INTERVALS;
use proptest::prelude::*;
use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, vec};

fn parsed(text: &str) -> Config {
    Config::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn message(text: &str) -> String {
    match Config::parse(text) {
        Ok(config) => panic!("{text:?} was accepted as {config}"),
        Err(error) => error.to_string(),
    }
}

fn divisions(text: &str) -> [u32; INTERVALS] {
    *parsed(&format!("roundup_power2_divisions:{text}")).roundup_power2_divisions().intervals()
}

#[test]
fn an_empty_string_is_the_defaults() {
    for text in ["", " ", "\t\r\n\x0B\x0C "] {
        assert_eq!(parsed(text), Config::default());
    }
    let config = Config::default();
    assert_eq!(config.large_segment_size(), 20 * MIB);
    assert_eq!(config.max_split_size(), None);
    assert!(!config.is_oversize(MAX_REQUEST));
    assert_eq!(config.max_non_split_rounding(), 20 * MIB);
    assert_eq!(config.garbage_collection_threshold(), None);
    assert_eq!(config.compact(), None);
    assert_eq!(*config.roundup_power2_divisions(), Divisions::NONE);
    assert!(!config.expandable_segments());
    assert_eq!(config.expandable_segments_reserve(), None);
    assert_eq!(config.per_process_memory_fraction().to_string(), "1");
    assert!(!config.throw_on_device_oom());
    assert!(!config.graph_capture_record_stream_reuse());
    assert!(!config.exact_segments());
    assert!(config.parity());
}

#[test]
fn every_key_is_read() {
    let config = parsed(
        "backend:native,max_split_size_mb:40,max_non_split_rounding_mb:30,large_segment_size_mb:24,\
         garbage_collection_threshold:0.5,compact:0.125,roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1],\
         exact_segments:True,expandable_segments:True,expandable_segments_reserve:0.5,\
         expandable_segments_reserve_by_class:[serving:0.25,ads:8G],per_process_memory_fraction:0.75,\
         throw_on_cudamalloc_oom:True,release_lock_on_cudamalloc:True,\
         graph_capture_record_stream_reuse:True,parity:False,pinned_use_cuda_host_register:True,\
         pinned_num_register_threads:8,pinned_use_background_threads:True,\
         pinned_reserve_segment_size_mb:512,pinned_max_round_threshold_mb:128,\
         pinned_max_cached_size_mb:256,pinned_free_catch_all:True,reclaim:auto,reclaim_budget:0.002,compact_slack_mb:7",
    );
    assert_eq!((config.reclaim(), parsed("reclaim_budget:0.1").reclaim()), (Some(0.002), None));
    assert_eq!(parsed("policy:bfc,reclaim:off,reclaim:auto").reclaim(), Some(0.01));
    assert_eq!(config.large_segment_size(), 24 * MIB);
    assert_eq!(config.max_split_size(), Some(40 * MIB));
    assert!(config.is_oversize(40 * MIB) && !config.is_oversize(40 * MIB - 512));
    assert_eq!(config.max_non_split_rounding(), 30 * MIB);
    assert_eq!(config.garbage_collection_threshold(), Some(0.5));
    assert_eq!(config.compact(), Some(0.125));
    assert!(config.exact_segments());
    assert_eq!(config.roundup_power2_divisions().intervals(), &[8, 8, 8, 8, 8, 8, 8, 2, 4, 2, 4, 1, 1, 1, 1, 1]);
    assert!(config.expandable_segments());
    assert_eq!(config.expandable_segments_reserve(), Some(Reserve::Fraction(0.5)));
    assert_eq!(config.per_process_memory_fraction().to_string(), "0.75");
    assert!(config.throw_on_device_oom());
    assert!(config.graph_capture_record_stream_reuse());
    assert!(!config.parity());
}

#[test]
fn every_key_of_the_table_knows_its_values() {
    for setting in &REFERENCE {
        let holds = |&name: &&str| Policy::named(name).is_some_and(|policy| setting.is_of(policy));
        let policy = POLICIES.into_iter().find(holds).unwrap_or(PLANNED);
        assert_eq!(policy == PLANNED, ["fallback", "plan_deadline_ms"].contains(&setting.key));
        let error = Config::parse(&format!("policy:{policy},{}:no such value", setting.key)).unwrap_err();
        let ConfigError::Value { key, value, .. } = &error else {
            panic!("{}: {error}", setting.key);
        };
        assert_eq!(*key, setting.key);
        assert_eq!(value.as_str(), "nosuchvalue");
        let proposed = format!("did you mean `{}`?", setting.key);
        assert!(message(&format!("{}x:1", setting.key)).contains(&proposed), "{}", setting.key);
    }
    assert!(REFERENCE.is_sorted_by(|a, b| a.key < b.key));
}

#[test]
fn other_names_set_the_same() {
    assert_eq!(parsed("decisions:improved").to_string(), "parity:False");
    assert_eq!(parsed("parity:False,decisions:pytorch"), Config::new());
    assert_eq!(
        parsed("release_lock_on_hipmalloc:True,pinned_use_hip_host_register:True"),
        parsed("release_lock_on_cudamalloc:True,pinned_use_cuda_host_register:True")
    );
}

#[test]
fn the_last_value_of_a_key_counts() {
    assert_eq!(
        parsed("max_split_size_mb:40,expandable_segments:True,max_split_size_mb:64,expandable_segments:False"),
        parsed("max_split_size_mb:64")
    );
    assert_eq!(parsed("large_segment_size_mb:40,large_segment_size_mb:12"), parsed("large_segment_size_mb:12"));
}

#[test]
fn white_space_is_dropped_everywhere() {
    assert_eq!(
        parsed(" max_split _size_mb\t: 6\n4 ,\r\nroundup_power2_divisions :[ 256 : 1 , > : 8\x0B]\x0C"),
        parsed("max_split_size_mb:64,roundup_power2_divisions:[256:1,>:8]")
    );
}

#[test]
fn division_lists() {
    // The first interval also sets all below it, and `>` sets all above the one before it.
    assert_eq!(divisions("4"), [4; 16]);
    assert_eq!(divisions("1"), [1; 16]);
    assert_eq!(divisions("[256:1,512:2,1024:4,>:8]"), [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8]);
    assert_eq!(divisions("[64:8,128:2,256:2,512:2,1024:1,>:1]"), [8, 8, 8, 8, 8, 8, 8, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
    // Intervals that are left out have no divisions.
    assert_eq!(divisions("[4:8,16:2]"), [8, 8, 8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(divisions("[1:2]")[..2], [2, 0]);
    assert_eq!(divisions("[>:8]")[..2], [0, 8]);
    assert_eq!(divisions("[2:4,>:0]")[..3], [4, 4, 0]);
    // Entries out of order: each is applied as it comes.
    assert_eq!(divisions("[4:8,1:2,>:1]")[..4], [2, 1, 1, 1]);
    // 64 GiB and above count as the last interval.
    assert_eq!(divisions("[32768:2,>:4]"), [2; 16]);
    assert_eq!(divisions("[65536:2]"), [2; 16]);
    assert_eq!(divisions("[9223372036854775808:2147483648]"), [1 << 31; 16]);
}

/// Refused text, the value named in the error, and the accepted values named in the error.
const REFUSED: &str = "
backend:cudaMallocAsync | cudaMallocAsync | `native`
backend:[native:1] | [native:1] | `native`
max_split_size_mb:2 | 2 | 20 to 1099511627776
max_split_size_mb:19 | 19 | 20 to 1099511627776
max_split_size_mb:-64 | -64 | a whole number of MiB from
max_split_size_mb:64MB | 64MB | a whole number of MiB from
max_split_size_mb:64.0 | 64.0 | a whole number of MiB from
max_split_size_mb:1099511627777 | 1099511627777 | a whole number of MiB from
max_split_size_mb:18446744073709551680 | 18446744073709551680 | a whole number of MiB from
max_split_size_mb:[64:1] | [64:1] | a whole number of MiB from
max_non_split_rounding_mb:19 | 19 | 20 to 1099511627776
max_non_split_rounding_mb:x | x | 20 to 1099511627776
large_segment_size_mb:10 | 10 | 11 to 1099511627776
large_segment_size_mb:big | big | 11 to 1099511627776
garbage_collection_threshold:1.2 | 1.2 | a number above 0 and below 1
garbage_collection_threshold:1 | 1.0 | a number above 0 and below 1
garbage_collection_threshold:0 | 0.0 | a number above 0 and below 1
garbage_collection_threshold:nan | NaN | a number above 0 and below 1
garbage_collection_threshold:0.5x | 0.5x | a number above 0 and below 1
compact:1.5 | 1.5 | a number from 0 to 1
compact:-0.1 | -0.1 | a number from 0 to 1
reclaim:True | True | `off` or `auto`
reclaim_budget:2 | 2.0 | a number from 0 to 1
compact:True | True | a number from 0 to 1
decisions:False | False | `pytorch` or `improved`
roundup_power2_divisions:3 | 3 | a power of two up to 2147483648
roundup_power2_divisions:0 | 0 | a power of two up to 2147483648
roundup_power2_divisions:4294967296 | 4294967296 | or a list like
roundup_power2_divisions:[] | [] | or a list like
roundup_power2_divisions:[64:3] | 3 | 0 or a power of two
roundup_power2_divisions:[63:2] | 63 | a power of two (MiB) or `>`
roundup_power2_divisions:[0:2] | 0 | a power of two (MiB) or `>`
roundup_power2_divisions:[<:2] | < | a power of two (MiB) or `>`
expandable_segments:true | true | `True` or `False`
expandable_segments_reserve:abc | abc | a positive part of the device
expandable_segments_reserve:G | G | a positive part of the device
expandable_segments_reserve:-1 | -1.0 | a positive part of the device
expandable_segments_reserve:0 | 0.0 | a positive part of the device
expandable_segments_reserve:infG | infG | a positive part of the device
expandable_segments_reserve:[a:1] | [a:1] | or a size in GiB like `40G`
expandable_segments_reserve_by_class:0.5 | 0.5 | a list like
expandable_segments_reserve_by_class:[a:12X] | 12X | a positive part
expandable_segments_reserve_by_class:[abcdefghijklmnopqrstuvwxyz0123456:1] | abcdefghijklmnopqrstuvwxyz0123456 | class names of 1 to 32 bytes
expandable_segments_reserve_by_class:[a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1] | i | up to 8 classes
per_process_memory_fraction:-0.1 | -0.1 | a number from 0 to 1
per_process_memory_fraction:1.1 | 1.1 | a number from 0 to 1
per_process_memory_fraction:half | half | a number from 0 to 1
throw_on_cudamalloc_oom:maybe | maybe | `True` or `False`
release_lock_on_cudamalloc:none | none | `True` or `False`
graph_capture_record_stream_reuse:1 | 1 | `True` or `False`
pinned_use_cuda_host_register:none | none | `True` or `False`
pinned_num_register_threads:none | none | a power of two up to 128
pinned_num_register_threads:3 | 3 | a power of two up to 128
pinned_num_register_threads:1024 | 1024 | a power of two up to 128
pinned_reserve_segment_size_mb:0 | 0 | 1 to 1099511627776
pinned_max_cached_size_mb:x | x | 0 to 1099511627776
guard:True | True | `off`, `all`, `after`
guard:sampled | sampled | with a number above 0
guard:sampled:0 | sampled:0 | with a number above 0
quarantine:-1 | -1 | a whole number of frees
zero:True | True | `off`, `on_alloc` or `on_free`
pattern:256 | 256 | a byte from 0 to 255
canary:yes | yes | `True` or `False`
nvtx:on | on | `off` or `auto`
";

#[test]
fn values_that_are_refused() {
    for row in REFUSED.trim().lines() {
        let mut columns = row.split(" | ");
        let [text, value, accepted] = [(); 3].map(|()| columns.next().unwrap());
        let (key, _) = text.split_once(':').unwrap();
        let message = message(text);
        let start = format!("{key} does not take `{value}`, only ");
        assert!(message.starts_with(&start), "{text}: {message}");
        assert!(message.contains(accepted), "{text}: {message}");
    }
}

#[test]
fn unknown_keys_are_named_and_a_similar_one_proposed() {
    let list = " docs/configuration.md lists the 50 keys";
    for (key, meant) in [
        ("max_split_size", "max_split_size_mb"),
        ("max-split-size-mb", "max_split_size_mb"),
        ("garbage_collection", "garbage_collection_threshold"),
        ("expandable", "expandable_segments"),
        ("Backend", "backend"),
        ("polcy", "policy"),
        ("roundup_power_2_divisions", "roundup_power2_divisions"),
    ] {
        assert_eq!(message(&format!("{key}:1")), format!("unknown key `{key}`, did you mean `{meant}`?{list}"));
    }
    for key in ["foo", "True", ">", "max", "roundup_bypass_threshold_mb", "expandable_segments_handle_type"] {
        assert_eq!(message(&format!("{key}:1,bar:2")), format!("unknown key `{key}`:{list}"));
    }
}

#[test]
fn separators_and_words_that_are_missing_doubled_or_left_over() {
    let split = "max_split_size_mb";
    for (text, error) in [
        (",", "expected a key, found `,`"),
        (":64", "expected a key, found `:`"),
        ("[a:1]", "expected a key, found `[`"),
        ("S", "expected `:` after `S`, but the string ends"),
        ("S64", "expected `:` after `S64`, but the string ends"),
        ("S,64", "expected `:` after `S`, found `,`"),
        ("S=64", "expected `:` after `S`, found `=`"),
        ("S = 64,R:8", "expected `:` after `S`, found `=`"),
        ("=64", "expected `:`, found `=`"),
        ("S[64", "expected `:` after `S`, found `[`"),
        ("S:", "expected a value after `S:`, but the string ends"),
        ("S:,", "expected a value after `S:`, found `,`"),
        ("S::64", "expected a value after `S:`, found `:`"),
        ("S:]", "expected a value after `S:`, found `]`"),
        ("S:64:64", "expected `,` after `S:64`, found `:`"),
        ("S:64]", "expected `,` after `S:64`, found `]`"),
        ("S:64[", "expected `,` after `S:64`, found `[`"),
        ("S:64,", "expected a key after `S:64,`, but the string ends"),
        ("S:64,,S:64", "expected a key after `S:64,`, found `,`"),
        ("S:64 S:64", "expected `,` after `S:64S`, found `:`"),
        ("R:[64:8", "expected `]` after `R:[`, but the string ends"),
        ("R:[64:8]x", "expected `,` after `R:[64:8]`, found `x`"),
        ("R:[64:8]]", "expected `,` after `R:[64:8]`, found `]`"),
        ("R:[64]", "expected `:` after `R:[64`, but the string ends"),
        ("R:[64:]", "expected a value after `R:[64:`, but the string ends"),
        ("R:[64:8,]", "expected a key after `R:[64:8,`, but the string ends"),
        ("R:[64:8 128:4]", "expected `,` after `R:[64:8128`, found `:`"),
        ("R:[64:8:4]", "expected `,` after `R:[64:8`, found `:`"),
        ("R:[,]", "expected a key after `R:[`, found `,`"),
        ("R:[64:[8]]", "expected `,` after `R:[64:[8]`, found `]`"),
        ("R:[64:[8]", "expected a value after `R:[64:`, found `[`"),
    ] {
        let full = |s: &str| s.replace('S', split).replace('R', "roundup_power2_divisions");
        assert_eq!(message(&full(text)), full(error), "{text}");
    }
}

#[test]
fn an_error_is_one_line() {
    let text = "roundup_power2_divisions:[64:8,\n128\u{1b}:4]x";
    let error = "expected `,` after `roundup_power2_divisions:[64:8, 128 :4]`, found `x`";
    assert_eq!(message(text), error);
}

#[test]
fn long_text_is_cut_in_errors() {
    let long = "é".repeat(30);
    let kept = "é".repeat(24);
    let ConfigError::UnknownKey { key, .. } = Config::parse(&format!("{long}:1")).unwrap_err() else {
        panic!("the key is not known");
    };
    assert_eq!((key.as_str(), key.whole()), (kept.as_str(), None));
    assert_eq!(key.to_string(), format!("{kept}…"));
    assert_eq!(format!("{key:?}"), format!("\"{kept}\"…"));
    // No shorter character is appended after one that did not fit.
    let ragged = "a".repeat(47);
    let start = format!("unknown key `{ragged}…`");
    assert!(message(&format!("{ragged}éb:1")).starts_with(&start));
    // A cut number is refused, and not parsed from its first digits.
    assert_eq!(
        message(&format!("garbage_collection_threshold:0.5{}", "0".repeat(60))),
        format!(
            "garbage_collection_threshold does not take `0.5{}…`, only a number above 0 and below 1, \
             in at most 48 bytes",
            "0".repeat(45)
        )
    );
}

#[test]
fn errors_outlive_the_string_and_are_small() {
    fn assert_kept<E: core::error::Error + Send + Sync + 'static>(_: &E) {}
    let error = {
        let text = String::from("max_split_size_mb:1");
        Config::parse(&text).unwrap_err()
    };
    assert_kept(&error);
    assert!(size_of::<ConfigError>() < 128);
}

#[test]
fn sizes_are_checked_against_the_large_segment_wherever_it_stands() {
    assert_eq!(
        message("max_split_size_mb:30,large_segment_size_mb:40"),
        "max_split_size_mb does not take `30`, only a whole number of MiB from 40 to 1099511627776"
    );
    assert_eq!(
        message("max_non_split_rounding_mb:39,large_segment_size_mb:40"),
        "max_non_split_rounding_mb does not take `39`, only a whole number of MiB from 40 to 1099511627776"
    );
    let config = parsed("max_split_size_mb:12,max_non_split_rounding_mb:13,large_segment_size_mb:12");
    assert_eq!(config.max_split_size(), Some(12 * MIB));
    assert_eq!(config.max_non_split_rounding(), 13 * MIB);
    assert_eq!(parsed("large_segment_size_mb:40").max_non_split_rounding(), 40 * MIB);
    assert_eq!(parsed("max_split_size_mb:20").max_split_size(), Some(20 * MIB));
}

#[test]
fn an_update_resets_four_settings_and_keeps_the_rest() {
    let all = "max_split_size_mb:64,max_non_split_rounding_mb:48,garbage_collection_threshold:0.5,\
               roundup_power2_divisions:4,large_segment_size_mb:40,compact:0.5,exact_segments:True,expandable_segments:True,\
               expandable_segments_reserve:0.5,expandable_segments_reserve_by_class:[a:1G],\
               per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True,\
               release_lock_on_cudamalloc:True,graph_capture_record_stream_reuse:True,\
               parity:False,pinned_num_register_threads:8";
    let mut config = parsed(all);
    config.update("").unwrap();
    assert_eq!(
        config.to_string(),
        "large_segment_size_mb:40,compact:0.5,exact_segments:True,expandable_segments:True,expandable_segments_reserve:0.5,\
         expandable_segments_reserve_by_class:[a:1.0G],per_process_memory_fraction:0.5,\
         throw_on_cudamalloc_oom:True,release_lock_on_cudamalloc:True,\
         graph_capture_record_stream_reuse:True,parity:False,pinned_num_register_threads:8"
    );
    // The rounding returns to the size of the large segment, which has not changed, and is checked
    // against it.
    assert_eq!(config.max_non_split_rounding(), 40 * MIB);
    assert!(config.update("max_split_size_mb:39").is_err());
    config.update("expandable_segments:False,max_split_size_mb:40").unwrap();
    assert_eq!(config.max_split_size(), Some(40 * MIB));
    assert!(!config.expandable_segments());
    // A list of classes replaces the one before; an empty list removes all.
    config.update("expandable_segments_reserve_by_class:[b:2]").unwrap();
    assert!(config.to_string().contains("_by_class:[b:2.0],"), "{config}");
    config.update("expandable_segments_reserve_by_class:[]").unwrap();
    assert!(!config.to_string().contains("_by_class"), "{config}");
    // `max_split_size_mb` is forgotten before a larger large segment is checked against it.
    config.update("max_split_size_mb:40").unwrap();
    config.update("large_segment_size_mb:64").unwrap();
    assert_eq!(config.large_segment_size(), 64 * MIB);
}

#[test]
fn a_failed_update_changes_nothing() {
    let before = parsed("max_split_size_mb:64,expandable_segments_reserve_by_class:[a:1G]");
    for text in [
        "large_segment_size_mb:40,expandable_segments:True,expandable_segments_reserve_by_class:[b:1],oops:1",
        "garbage_collection_threshold:0.5,",
        "expandable_segments_reserve_by_class:[b:1,c:nan]",
    ] {
        let mut config = before.clone();
        assert!(config.update(text).is_err(), "{text}");
        assert_eq!(config, before, "{text}");
    }
}

#[test]
fn setters_check_as_the_parser_does() {
    let mut config = Config::default();
    config.set_max_split_size_mb(Some(64)).unwrap();
    assert_eq!(
        config.set_large_segment_size_mb(65).unwrap_err().to_string(),
        "large_segment_size_mb does not take `65`, only a whole number of MiB from 11 to 64"
    );
    config.set_large_segment_size_mb(64).unwrap();
    assert_eq!(config.max_non_split_rounding(), 64 * MIB);
    assert!(config.set_max_split_size_mb(Some(63)).is_err());
    assert!(config.set_max_non_split_rounding_mb(63).is_err());
    assert!(config.set_garbage_collection_threshold(Some(f64::NAN)).is_err());
    assert!(config.set_compact(Some(f64::NAN)).is_err());
    assert!(config.set_per_process_memory_fraction(f64::NAN).is_err());
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        for reserve in [Reserve::Fraction(bad), Reserve::Gibibytes(bad)] {
            assert!(config.set_expandable_segments_reserve(Some(reserve)).is_err());
        }
    }
    let half = Some(Reserve::Fraction(0.5));
    assert_eq!(config.to_string(), "large_segment_size_mb:64,max_split_size_mb:64");

    config.set_max_non_split_rounding_mb(100).unwrap();
    config.set_garbage_collection_threshold(Some(0.25)).unwrap();
    config.set_compact(Some(0.0)).unwrap();
    config.set_roundup_power2_divisions(Divisions::new([4; INTERVALS]).unwrap());
    config.set_expandable_segments(true);
    config.set_expandable_segments_reserve(half).unwrap();
    config.set_per_process_memory_fraction(0.0).unwrap();
    config.set_throw_on_device_oom(true);
    config.set_graph_capture_record_stream_reuse(true);
    config.set_parity(false);
    assert_eq!(
        config.to_string(),
        "large_segment_size_mb:64,max_split_size_mb:64,max_non_split_rounding_mb:100,\
         garbage_collection_threshold:0.25,compact:0.0,roundup_power2_divisions:4,expandable_segments:True,\
         expandable_segments_reserve:0.5,per_process_memory_fraction:0.0,throw_on_cudamalloc_oom:True,\
         graph_capture_record_stream_reuse:True,parity:False"
    );
    config.set_max_split_size_mb(None).unwrap();
    assert_eq!(config.max_split_size(), None);
}

#[test]
fn reserves() {
    const GIB: u64 = 1024 * MIB;
    let total = 100 * GIB;
    let bytes = |text: &str| parsed(text).expandable_segments_reserve().unwrap().bytes(total);
    assert_eq!(bytes("expandable_segments_reserve:0.9"), total / 10 * 9);
    assert_eq!(bytes("expandable_segments_reserve:8g"), 8 * GIB);
    // A reserve beyond `u64` saturates.
    assert_eq!(bytes("expandable_segments_reserve:1e20G"), u64::MAX);
}

#[test]
fn keys_without_effect_are_checked_and_written_again() {
    let text = "expandable_segments_reserve_by_class:[serving:0.25,ads_sparse:8.0G],release_lock_on_cudamalloc:True,\
                pinned_use_cuda_host_register:True,pinned_num_register_threads:8,pinned_use_background_threads:True,\
                pinned_reserve_segment_size_mb:512,pinned_max_round_threshold_mb:0,pinned_max_cached_size_mb:256,\
                pinned_free_catch_all:True";
    let config = parsed(text);
    assert_eq!(config.to_string(), text);
    for (key, value) in [
        ("release_lock_on_cudamalloc", Some(1)),
        ("pinned_num_register_threads", Some(8)),
        ("pinned_reserve_segment_size_mb", Some(512)),
        ("pinned_max_round_threshold_mb", Some(0)),
        ("expandable_segments_reserve_by_class", None),
        ("compact", None),
    ] {
        assert_eq!(config.passed_on(key), value, "{key}");
        assert_eq!(Config::new().passed_on(key), None, "{key}");
    }
    let off = "release_lock_on_cudamalloc:False,pinned_use_cuda_host_register:False,pinned_num_register_threads:1,\
               pinned_use_background_threads:False,pinned_free_catch_all:False,\
               expandable_segments_reserve_by_class:[]";
    let sizes = "pinned_reserve_segment_size_mb:512,pinned_max_round_threshold_mb:0,pinned_max_cached_size_mb:256";
    assert_eq!(parsed(&format!("{text},{off}")).to_string(), sizes);
    // As many classes as fit, and one of them again.
    let full = "expandable_segments_reserve_by_class:[a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,a:2]";
    assert!(parsed(full).to_string().contains(":[a:2.0,b:1.0,"), "{}", parsed(full));
}

#[test]
fn what_is_written_is_canonical() {
    for (text, written) in [
        ("", ""),
        ("backend:native", ""),
        ("max_split_size_mb:0064", "max_split_size_mb:64"),
        ("max_non_split_rounding_mb:20", ""),
        ("large_segment_size_mb:20,max_split_size_mb:20", "max_split_size_mb:20"),
        ("per_process_memory_fraction:1.0", ""),
        ("per_process_memory_fraction:.5", "per_process_memory_fraction:0.5"),
        ("garbage_collection_threshold:1e-300", "garbage_collection_threshold:1e-300"),
        ("expandable_segments_reserve:40G", "expandable_segments_reserve:40.0G"),
        ("expandable_segments:False,pinned_free_catch_all:False", ""),
        ("roundup_power2_divisions:8", "roundup_power2_divisions:8"),
        ("roundup_power2_divisions:1", "roundup_power2_divisions:1"),
        ("roundup_power2_divisions:[1:0,>:0]", ""),
        ("roundup_power2_divisions:[64:4,>:4]", "roundup_power2_divisions:4"),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"),
        ("roundup_power2_divisions:[>:8]", "roundup_power2_divisions:[1:0,>:8]"),
        (
            "roundup_power2_divisions:[2:4,8:2,32768:16]",
            "roundup_power2_divisions:[2:4,4:0,8:2,16:0,32:0,64:0,128:0,256:0,512:0,1024:0,2048:0,4096:0,\
             8192:0,16384:0,>:16]",
        ),
    ] {
        assert_eq!(parsed(text).to_string(), written, "{text}");
        assert_eq!(parsed(written), parsed(text), "{text}");
    }
}

/// The values that an entry of a valid configuration can have, key by key.
fn entry() -> impl Strategy<Value = String> {
    let boolean = || prop::sample::select(vec!["True", "False"]);
    let power = || (0u32..32).prop_map(|log2| 1u64 << log2);
    let fraction = || 1e-300f64..1.0;
    let reserve = || (fraction(), any::<bool>()).prop_map(|(f, g)| format!("{f:?}{}", if g { "G" } else { "" }));
    let interval = (0u32..64, prop::option::of(0u32..32))
        .prop_map(|(i, d)| format!("{}:{}", 1u64 << i, d.map_or(0, |d| 1u64 << d)));
    let intervals = prop::collection::vec(interval, 1..9);
    let classes = prop::collection::vec(("[a-z_é]{1,9}", reserve()), 0..=8);
    prop_oneof![
        (40u64..1 << 40).prop_map(|mib| format!("max_split_size_mb:{mib}")),
        (40u64..1 << 40).prop_map(|mib| format!("max_non_split_rounding_mb:{mib}")),
        (11u64..=40).prop_map(|mib| format!("large_segment_size_mb:{mib}")),
        fraction().prop_map(|f| format!("garbage_collection_threshold:{f:?}")),
        fraction().prop_map(|f| format!("compact:{f:?}")),
        (0u64..1 << 40).prop_map(|mib| format!("compact_slack_mb:{mib}")),
        power().prop_map(|d| format!("roundup_power2_divisions:{d}")),
        (intervals, prop::option::of(power())).prop_map(|(list, above)| {
            let above = above.map_or_else(String::new, |d| format!(",>:{d}"));
            format!("roundup_power2_divisions:[{}{above}]", list.join(","))
        }),
        fraction().prop_map(|f| format!("expandable_segments_reserve:{f:?}")),
        fraction().prop_map(|f| format!("per_process_memory_fraction:{f:?}")),
        classes.prop_map(|list| {
            let list: Vec<_> = list.iter().map(|(name, reserve)| format!("{name}:{reserve}")).collect();
            format!("expandable_segments_reserve_by_class:[{}]", list.join(","))
        }),
        (0u64..1 << 40).prop_map(|mib| format!("pinned_max_cached_size_mb:{mib}")),
        (1u64..1 << 40).prop_map(|mib| format!("pinned_reserve_segment_size_mb:{mib}")),
        (0u32..8).prop_map(|log2| format!("pinned_num_register_threads:{}", 1 << log2)),
        boolean().prop_map(|b| format!("expandable_segments:{b}")),
        boolean().prop_map(|b| format!("throw_on_cudamalloc_oom:{b}")),
        boolean().prop_map(|b| format!("release_lock_on_hipmalloc:{b}")),
        boolean().prop_map(|b| format!("graph_capture_record_stream_reuse:{b}")),
        boolean().prop_map(|b| format!("parity:{b}")),
        prop::sample::select(vec!["off", "auto"]).prop_map(|mode| format!("reclaim:{mode}")),
        fraction().prop_map(|f| format!("reclaim_budget:{f:?}")),
        boolean().prop_map(|b| format!("pinned_use_background_threads:{b}")),
    ]
}

/// Text that is nearly a configuration: its words and separators in any order.
fn nearly() -> impl Strategy<Value = String> {
    let mut words: Vec<&str> = REFERENCE.iter().map(|setting| setting.key).collect();
    words.extend([",", ",", ",", ":", ":", ":", "[", "]", ">", "True", "False", "0.5", "40G", "64", "8", " ", "é"]);
    prop::collection::vec(prop::sample::select(words), 0..12).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn valid_text_is_accepted_and_reads_back(entries in prop::collection::vec(entry(), 0..12)) {
        let config = parsed(&entries.join(","));
        prop_assert_eq!(&parsed(&config.to_string()), &config);
        prop_assert!(config.large_segment_size() > 10 * MIB);
        prop_assert!(config.max_non_split_rounding() >= config.large_segment_size());
        prop_assert!(config.max_split_size().is_none_or(|bytes| bytes >= config.large_segment_size()));
    }

    #[test]
    fn an_update_is_all_or_nothing(before in entry(), text in nearly()) {
        let before = parsed(&before);
        let mut config = before.clone();
        match config.update(&text) {
            Ok(()) => prop_assert_eq!(&parsed(&config.to_string()), &config),
            Err(error) => {
                prop_assert_eq!(config, before);
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        match Config::parse(&text) {
            Ok(config) => prop_assert_eq!(&parsed(&config.to_string()), &config),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn divisions_read_back(logs in prop::array::uniform16(prop::option::of(0u32..32))) {
        let of_interval = logs.map(|log2| log2.map_or(0, |log2| 1 << log2));
        let mut config = Config::default();
        config.set_roundup_power2_divisions(Divisions::new(of_interval).unwrap());
        prop_assert_eq!(&parsed(&config.to_string()), &config);
    }
}

#[test]
fn settings_adjust_themselves_under_the_caching_policy_alone() {
    let config = parsed("tune:auto,tune_budget_ms:500");
    assert_eq!((config.tunes(), config.tune_budget_ms()), (true, 500));
    assert_eq!(config.to_string(), "tune:auto,tune_budget_ms:500");
    assert_eq!((parsed("tune:off"), parsed("").tune_budget_ms()), (Config::new(), 2000));
    for (text, start) in [
        ("tune:on", "tune does not take `on`, only `auto` or `off`"),
        ("tune:[auto:1]", "tune does not take "),
        ("policy:stitched,tune:auto", "tune is not a key of policy `stitched`; its keys are "),
        ("policy:planned,tune:auto", "tune does not take `auto`, only `off` under `policy:planned`, whose plans"),
        ("tune:auto,policy:planned", "tune does not take `auto`, only `off` under `policy:planned`, whose plans"),
        ("policy:planned,fallback:bfc,tune:auto", "tune is not a key of policy `bfc`"),
    ] {
        let error = Config::parse(text).expect_err(text).to_string();
        assert!(error.starts_with(start), "{text}: {error}");
    }
    assert_eq!(parsed("policy:planned,tune:off").to_string(), "policy:planned");
}

#[test]
fn the_planned_policy_has_its_keys_and_those_of_its_fallback() {
    let config = parsed("first_region_mb:4,fallback:bfc,plan_deadline_ms:50,policy:planned");
    assert_eq!(config.policy(), Policy::Bfc(Bfc { first_region: 4 * MIB, ..Bfc::DEFAULT }));
    assert_eq!((config.policy_name(), config.planned()), (PLANNED, Some(Planned { plan_deadline_ms: 50 })));
    assert_eq!(config.to_string(), "policy:planned,fallback:bfc,plan_deadline_ms:50,first_region_mb:4");
    for text in ["policy:planned", "policy:planned,max_split_size_mb:64"] {
        assert_eq!(parsed(text).to_string(), text);
    }
    for (text, start) in [
        ("policy:planned,fallback:direct", "fallback does not take `direct`, only `caching`, "),
        ("policy:planned,fallback:planned", "fallback does not take `planned`, only "),
        ("policy:planned,plan_deadline_ms:soon", "plan_deadline_ms does not take `soon`, only "),
        ("policy:planned,fallback:bfc,slack:0.1", "slack is not a key of policy `bfc`; its keys are "),
        ("fallback:bfc", "fallback is not a key of policy `caching`; its keys are "),
        ("policy:bfc,plan_deadline_ms:9", "plan_deadline_ms is not a key of policy `bfc`; its keys are "),
    ] {
        assert!(message(text).starts_with(start), "{text}: {}", message(text));
    }
    let mut config = config;
    for text in ["policy:bfc", "plan_deadline_ms:51", "fallback:stitched"] {
        let error = config.update(text).unwrap_err().to_string();
        assert!(error.starts_with("policy does not take `") && error.ends_with("stay"), "{text}: {error}");
    }
    assert_eq!(config.update("expandable_segments:True"), Ok(()));
    assert_eq!(config.policy_name(), PLANNED);
}

#[test]
fn a_policy_has_its_own_keys_wherever_it_is_named() {
    let config = parsed("retry_ms:20,policy:bfc,allow_growth:False,first_region_mb:4,region_garbage_collection:False");
    let bfc = Bfc {
        allow_growth: false,
        first_region: 4 * MIB,
        region_garbage_collection: false,
        retry_ms: 20,
        ..Bfc::DEFAULT
    };
    assert_eq!(config.policy(), Policy::Bfc(bfc));
    for text in
        ["policy:direct", "policy:stitched,slack:0.05,max_stall_us:500,strict_stall:True,completed_pages_only:True"]
    {
        assert_eq!(parsed(text).to_string(), text);
    }
    assert_eq!(parsed(&config.to_string()), config);
    for (text, start) in [
        (
            "policy:bfc,max_split_size_mb:64",
            "max_split_size_mb is not a key of policy `bfc`; its keys are allow_growth, backend, ",
        ),
        ("first_region_mb:4", "first_region_mb is not a key of policy `caching`; its keys are backend, "),
        ("policy:tcmalloc", "policy does not take `tcmalloc`, only `caching`, `bfc`, `stitched`, "),
        ("policy:[bfc]", "policy does not take `[bfc]`, only "),
    ] {
        assert!(message(text).starts_with(start), "{text}: {}", message(text));
    }
    let mut config = config;
    let before = config.clone();
    for text in ["policy:direct", "policy:bfc", "retry_ms:21"] {
        let error = config.update(text).unwrap_err().to_string();
        assert!(error.starts_with("policy does not take `") && error.ends_with("stay"), "{text}: {error}");
        assert_eq!(config, before);
    }
    assert_eq!(config.update("expandable_segments:True"), Ok(()));
}

#[test]
fn every_setting_has_one_place_in_the_string_form() {
    let in_order = super::reference::in_order(Policy::Caching);
    let mut written: Vec<&str> = in_order.map(|setting| setting.key).collect();
    written.sort_unstable();
    let own_name = |setting: &&&SettingReference| setting.written == setting.key;
    let mut settings: Vec<&str> = REFERENCE.iter().filter(own_name).map(|setting| setting.key).collect();
    settings.sort_unstable();
    assert_eq!(written, settings);
}
