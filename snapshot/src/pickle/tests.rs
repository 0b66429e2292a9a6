//! Tests of pickles against another library, and against invalid bytes.

use super::opcode::{
    BINBYTES, BINBYTES8, BINSTRING, BINUNICODE, BINUNICODE8, LONG1, LONG4, SHORT_BINBYTES, SHORT_BINSTRING,
    SHORT_BINUNICODE,
};
use super::{Error, from_slice, to_writer};
use crate::{Event, Frame, Stack};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Seeds of earlier failures.
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/regressions/snapshot.txt");

fn pickled(value: &(impl Serialize + ?Sized)) -> Vec<u8> {
    let mut bytes = Vec::new();
    to_writer(&mut bytes, value).expect("a vector takes everything");
    bytes
}

/// Generates values of lists, dictionaries and plain values.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..70_000_i64).prop_map(Value::from),
        (-1e300..1e300).prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map(".{0,5}", inner, 0..8).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_written_is_read_here_and_elsewhere(value in values()) {
        let bytes = pickled(&value);
        prop_assert_eq!(&from_slice::<Value>(&bytes).expect("our own"), &value);
        let elsewhere: Value = serde_pickle::from_slice(&bytes, serde_pickle::DeOptions::new()).expect("a pickle");
        prop_assert_eq!(&elsewhere, &value);
        let theirs = serde_pickle::to_vec(&value, serde_pickle::SerOptions::new()).expect("plain values");
        prop_assert_eq!(&from_slice::<Value>(&theirs).expect("theirs"), &value);
    }

    #[test]
    fn nonsense_is_refused_and_no_more(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = from_slice::<Value>(&bytes);
    }

    #[test]
    fn damage_is_refused_and_no_more(value in values(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = pickled(&value);
        let at = at.index(bytes.len());
        let _ = from_slice::<Value>(&bytes[..at]).expect_err("it is cut off");
        bytes[at] = byte;
        let _ = from_slice::<Value>(&bytes);
    }
}

#[test]
fn numbers_take_as_many_bytes_as_they_need() {
    // The plain values of `serde-pickle` have no larger numbers. Python's numbers have any
    // length.
    for bits in 0..64 {
        for value in [1_u64 << bits, (1 << bits) - 1, u64::MAX >> bits] {
            assert_eq!(from_slice::<u64>(&pickled(&value)).expect("our own"), value);
            let negative = (value >> 1).cast_signed().wrapping_neg();
            assert_eq!(from_slice::<i64>(&pickled(&negative)).expect("our own"), negative);
        }
    }
    assert_eq!(pickled(&(1_u64 << 31)), b"\x80\x02\x8a\x05\0\0\0\x80\0.");
    assert_eq!(pickled(&i64::MIN), b"\x80\x02\x8a\x08\0\0\0\0\0\0\0\x80.");
}

/// Builds a pickle of a tuple: an operation with the argument, then the number 7 to show where the
/// argument ended.
fn pair(operation: u8, length: &[u8], content: &[u8]) -> Vec<u8> {
    // PROTO 2, MARK, the operation, BININT1 7, TUPLE, STOP.
    [b"\x80\x02(".as_slice(), &[operation], length, content, b"K\x07t."].concat()
}

#[test]
fn long_integers_have_every_length_up_to_16_bytes() {
    let bytes: [u8; 17] = std::array::from_fn(|at| 0x11 * (at as u8 % 7 + 1));
    for length in 0..=16_u8 {
        for sign in [0x00, 0x80] {
            let mut content = bytes[..length.into()].to_vec();
            content.last_mut().into_iter().for_each(|last| *last = *last & 0x7f | sign);
            let bits = content.iter().rev().fold(0_u128, |bits, &byte| bits << 8 | u128::from(byte));
            let unused = 128 - 8 * u32::from(length);
            let wanted = if length == 0 { 0 } else { bits.cast_signed() << unused >> unused };
            let short = pair(LONG1, &[length], &content);
            assert_eq!(from_slice::<(i128, u8)>(&short).expect("a number"), (wanted, 7), "{content:x?}");
            let long = pair(LONG4, &u32::from(length).to_le_bytes(), &content);
            assert_eq!(from_slice::<(i128, u8)>(&long).expect("a number"), (wanted, 7), "{content:x?}");
        }
    }
    for too_long in [pair(LONG1, &[17], &bytes), pair(LONG4, &17_u32.to_le_bytes(), &bytes)] {
        let error = from_slice::<(i128, u8)>(&too_long).expect_err("more than 128 bits");
        assert!(error.to_string().starts_with("a number of more than 128 bits at byte"), "{error}");
    }
}

#[test]
fn bytes_and_texts_have_lengths_of_one_four_and_eight_bytes() {
    for length in [0_usize, 1, 2, 255, 256, 70_000] {
        let content: String = ('a'..='z').cycle().take(length).collect();
        let four = u32::try_from(length).expect("it is small").to_le_bytes();
        let mut pickles = vec![
            pair(BINBYTES, &four, content.as_bytes()),
            pair(BINBYTES8, &(length as u64).to_le_bytes(), content.as_bytes()),
            pair(BINUNICODE, &four, content.as_bytes()),
            pair(BINUNICODE8, &(length as u64).to_le_bytes(), content.as_bytes()),
            pair(BINSTRING, &four, content.as_bytes()),
        ];
        if let Ok(one) = u8::try_from(length) {
            let short = [SHORT_BINBYTES, SHORT_BINUNICODE, SHORT_BINSTRING];
            pickles.extend(short.map(|operation| pair(operation, &[one], content.as_bytes())));
        }
        for pickle in pickles {
            // Bytes in UTF-8 are also read as a string.
            let (text, behind) = from_slice::<(String, u8)>(&pickle).expect("a text");
            assert!(text == content && behind == 7, "{:#x}, {length} bytes", pickle[3]);
        }
    }
}

#[test]
fn lengths_beyond_the_end_are_refused() {
    let cases = [
        pair(LONG1, &[100], b""),
        pair(LONG4, &u32::MAX.to_le_bytes(), b""),
        pair(SHORT_BINBYTES, &[100], b""),
        pair(BINBYTES, &u32::MAX.to_le_bytes(), b""),
        pair(BINBYTES8, &u64::MAX.to_le_bytes(), b""),
        pair(BINUNICODE8, &(u64::MAX - 4).to_le_bytes(), b""),
    ];
    for pickle in cases {
        let error = from_slice::<Value>(&pickle).expect_err("it ends early");
        assert!(matches!(error, Error::Truncated(at) if at == pickle.len()), "{error}");
    }
}

/// Covers stack operations that Python's own pickler never writes, or writes in old protocols only.
#[test]
fn the_stack_is_moved_as_python_moves_it() {
    let cases: [(&[u8], Value); 13] = [
        (b"K\x052\x86.", json!([5, 5])),
        (b"K\x01K\x020.", json!(1)),
        (b"K\x07(K\x01K\x021.", json!(7)),
        (b"(K\x01K\x02l.", json!([1, 2])),
        (b"(K\x01K\x02t.", json!([1, 2])),
        (b"(X\x01\0\0\0aK\x01X\x01\0\0\0bK\x02d.", json!({"a": 1, "b": 2})),
        (b"K\x09(X\x01\0\0\0aK\x01d\x86.", json!([9, {"a": 1}])),
        (b"(l.", json!([])),
        (b"(t.", json!([])),
        (b"(d.", json!({})),
        (b"](e.", json!([])),
        (b"K\x01\x85.", json!([1])),
        (b"K\x01K\x02K\x03\x87.", json!([1, 2, 3])),
    ];
    for (operations, wanted) in cases {
        let pickle = [b"\x80\x02", operations].concat();
        assert_eq!(from_slice::<Value>(&pickle).expect("a pickle"), wanted, "{operations:x?}");
    }
}

#[test]
fn small_values_are_referred_to_by_number() {
    // None and 5 as numbers 0 and 1, and then each of them again.
    let pickle = b"\x80\x04](N\x94K\x05\x94h\x00h\x01e.";
    assert_eq!(from_slice::<Vec<Option<u8>>>(pickle).unwrap(), [None, Some(5), None, Some(5)]);
    assert_eq!(from_slice::<Value>(pickle).unwrap(), json!([null, 5, null, 5]));
}

#[test]
fn long_lists_and_dictionaries_come_in_parts() {
    let list: Vec<u32> = (0..2500).collect();
    let map: BTreeMap<String, u32> = list.iter().map(|at| (at.to_string(), *at)).collect();
    let bytes = pickled(&(&list, &map));
    assert_eq!(from_slice::<(Vec<u32>, BTreeMap<String, u32>)>(&bytes).expect("our own"), (list, map));
}

#[test]
fn a_stack_is_written_once() {
    let frame = |line| Frame { name: "forward".into(), filename: "model.py".into(), line, ..Frame::default() };
    let stacks = [Stack::from(vec![frame(1), frame(2)]), Stack::from(vec![frame(3)]), Stack::default()];
    let many: Vec<Stack> = (0..3000).map(|at| stacks[at % 3].clone()).collect();
    let bytes = pickled(&many);
    assert!(bytes.len() < 20_000, "{}", bytes.len());
    assert_eq!(from_slice::<Vec<Stack>>(&bytes).expect("our own"), many);
}

#[test]
fn what_contains_itself_is_refused() {
    // [[[…]]]: EMPTY_LIST, BINPUT 0, BINGET 0, APPEND.
    let endless = b"\x80\x02]q\x00h\x00a.";
    assert!(matches!(from_slice::<Value>(endless), Err(Error::Unexpected(_))));
}

#[test]
fn objects_are_refused_by_name() {
    // GLOBAL os.system.
    let error = from_slice::<Value>(b"\x80\x02cos\nsystem\n.").expect_err("no plain value");
    assert_eq!(error.to_string(), "the operation 0x63, which plain values do not need, at byte 2");
    let error = from_slice::<Value>(&pickled(&json!({"a": [1]}))[..7]).expect_err("cut off");
    assert!(matches!(error, Error::Truncated(7)), "{error}");
}

/// Every kind of value that a program may ask to write.
#[derive(Serialize)]
enum Kind {
    Plain,
    Of(u8),
    Pair(u8, u8),
    Named { one: u8 },
}

#[derive(Serialize)]
struct Unit;

#[derive(Serialize)]
struct Wrapped(u8);

#[derive(Serialize)]
struct Couple(u8, u8);

#[derive(Serialize)]
struct Triple(u8, u8, u8);

#[derive(Serialize)]
struct Record {
    one: u8,
}

/// Bytes, as no list of numbers.
struct Bytes;

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(b"")
    }
}

#[test]
fn every_value_is_written_in_its_shortest_form() {
    let cases: [(Vec<u8>, &[u8]); 33] = [
        (pickled(&0_u8), b"K\0"),
        (pickled(&255_i16), b"K\xff"),
        (pickled(&256_u16), b"M\0\x01"),
        (pickled(&65_535_i32), b"M\xff\xff"),
        (pickled(&65_536_u32), b"J\0\0\x01\0"),
        (pickled(&-1_i8), b"J\xff\xff\xff\xff"),
        (pickled(&i32::MAX), b"J\xff\xff\xff\x7f"),
        (pickled(&i32::MIN), b"J\0\0\0\x80"),
        (pickled(&(i64::from(i32::MIN) - 1)), b"\x8a\x05\xff\xff\xff\x7f\xff"),
        (pickled(&0x7f_ffff_ffff_u64), b"\x8a\x05\xff\xff\xff\xff\x7f"),
        (pickled(&0x80_0000_0000_u64), b"\x8a\x06\0\0\0\0\x80\0"),
        (pickled(&-0x80_0000_0000_i64), b"\x8a\x05\0\0\0\0\x80"),
        (pickled(&u64::MAX), b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0"),
        (pickled(&true), b"\x88"),
        (pickled(&false), b"\x89"),
        (pickled(&1.5_f32), b"G\x3f\xf8\0\0\0\0\0\0"),
        (pickled(&-2.0_f64), b"G\xc0\0\0\0\0\0\0\0"),
        (pickled(&'é'), b"X\x02\0\0\0\xc3\xa9"),
        (pickled("text"), b"X\x04\0\0\0text"),
        (pickled(&None::<u8>), b"N"),
        (pickled(&Some(7)), b"K\x07"),
        (pickled(&()), b"N"),
        (pickled(&Unit), b"N"),
        (pickled(&Kind::Plain), b"X\x05\0\0\0Plain"),
        (pickled(&Wrapped(7)), b"K\x07"),
        (pickled(&(7,)), b"(K\x07t"),
        (pickled(&(7, 8)), b"K\x07K\x08\x86"),
        (pickled(&(7, 8, 9)), b"(K\x07K\x08K\x09t"),
        (pickled(&Couple(7, 8)), b"K\x07K\x08\x86"),
        (pickled(&Triple(7, 8, 9)), b"(K\x07K\x08K\x09t"),
        (pickled(&Vec::<u8>::new()), b"]"),
        (pickled(&BTreeMap::from([(1, 2)])), b"}(K\x01K\x02u"),
        (pickled(&Record { one: 7 }), b"}(X\x03\0\0\0oneK\x07u"),
    ];
    for (pickle, operations) in cases {
        assert_eq!(pickle, [b"\x80\x02", operations, b"."].concat(), "{operations:x?}");
    }
    for (unsupported, text) in [
        (to_writer(Vec::new(), &Bytes), "bytes cannot be pickled"),
        (to_writer(Vec::new(), &Kind::Of(7)), "a variant with a field cannot be pickled"),
        (to_writer(Vec::new(), &Kind::Pair(7, 8)), "a variant with fields cannot be pickled"),
        (to_writer(Vec::new(), &Kind::Named { one: 7 }), "a variant with fields cannot be pickled"),
    ] {
        assert_eq!(unsupported.expect_err("no plain value").to_string(), text);
    }
}

#[test]
fn batches_have_a_thousand_entries() {
    let batch = |count: usize| [&b"("[..], &b"N".repeat(count), b"e"].concat();
    for (count, batches) in [(999, vec![999]), (1000, vec![1000]), (1001, vec![1000, 1]), (2000, vec![1000, 1000])] {
        let entries: Vec<u8> = batches.into_iter().flat_map(batch).collect();
        assert_eq!(pickled(&vec![(); count]), [&b"\x80\x02]"[..], &entries, b"."].concat(), "{count}");
    }
}

#[test]
fn a_program_of_nonsense_is_refused_with_its_place() {
    let no_value = "an operation needs a value, and the stack is empty at byte";
    let above = "an operation needs a value, and none is above the latest mark at byte";
    let no_mark = "an operation needs a mark, and none is set at byte";
    let no_list = "entries are added to a value that is no list at byte";
    let no_dict = "entries are added to a value that is no dictionary, or a key has no value at byte";
    let cases: [(&[u8], &str, usize); 21] = [
        (b"\x80\x06N.", "protocol 6, and 5 is the highest known at byte", 1),
        (b".", no_value, 0),
        (b"N00.", no_value, 2),
        (b"2.", no_value, 0),
        (b"q\x00.", no_value, 1),
        (b"K\x01(0.", above, 3),
        (b"K\x01(.", above, 3),
        (b"K\x01(\x85.", above, 3),
        (b"K\x01\x86.", no_value, 2),
        (b"1.", no_mark, 0),
        (b"]e.", no_mark, 1),
        (b"N(N0N.", "", 0),
        (b"a.", no_value, 0),
        (b"Na.", no_value, 1),
        (b"NNa.", no_list, 2),
        (b"(e.", no_list, 1),
        (b"}(Ne.", no_list, 3),
        (b"](NNu.", no_dict, 4),
        (b"}(Nu.", no_dict, 3),
        (b"(Nd.", no_dict, 2),
        (b"h\x07.", "there is no value 7 to refer to at byte", 1),
    ];
    for (pickle, text, at) in cases {
        let wanted = if text.is_empty() { Ok(Value::Null) } else { Err(format!("{text} {at}")) };
        assert_eq!(from_slice::<Value>(pickle).map_err(|error| error.to_string()), wanted, "{pickle:x?}");
    }
}

#[test]
fn values_are_nested_64_deep() {
    let nested = |depth: usize| from_slice::<Value>(&[&b"]".repeat(depth)[..], &b"a".repeat(depth - 1), b"."].concat());
    let mut wanted = json!([]);
    for _ in 0..64 {
        wanted = json!([wanted]);
    }
    assert_eq!(nested(65).expect("64 levels below the first"), wanted);
    assert_eq!(nested(66).expect_err("65 levels").to_string(), "values are nested more than 64 deep");
}

#[test]
fn shared_values_expand_up_to_the_bound() {
    // A list of references to a text that counts as 1 + 100 values, and of `None`: 65,536 values or
    // one more.
    let list = |operation: u8, numbers: usize| {
        let text = [&[operation][..], &3200_u32.to_le_bytes(), &b"x".repeat(3200), b"q\0"].concat();
        [b"](", &text[..], &b"h\0".repeat(647), &b"N".repeat(numbers), b"e"].concat()
    };
    let event = |list: &[u8]| [b"}(X\x06\0\0\0actionU\x05allocU\x04more", list, b"u."].concat();
    for operation in [BINUNICODE, BINBYTES] {
        let pickle = |numbers| [&list(operation, numbers)[..], b"."].concat();
        let read: Vec<Option<String>> = from_slice(&pickle(87)).expect("as many as are accepted");
        assert_eq!(read.len(), 648 + 87);
        assert!(matches!(from_slice::<Vec<Option<String>>>(&pickle(88)), Err(Error::Expands(65_536))));
    }
    // An event has a dictionary, two keys and a text more.
    let pickle = |numbers| event(&list(BINUNICODE, numbers));
    assert_eq!(from_slice::<Event>(&pickle(83)).expect("as many as are accepted").action, "alloc");
    assert!(matches!(from_slice::<Event>(&pickle(84)), Err(Error::Expands(65_536))));
}
