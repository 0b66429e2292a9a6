//! Recognizes a file by its first bytes, and says of a file that cannot be used what it is.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// What to record in the place of a file that does not have enough.
macro_rules! record_instead {
    () => {
        "record a snapshot: torch.cuda.memory._record_memory_history(), and after the work \
         torch.cuda.memory._dump_snapshot(FILE)"
    };
}
pub(super) use record_instead;

/// What a decompressed file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A record in text lines.
    Record,
    /// A log of RMM's `logging_resource_adaptor`.
    Rmm,
    /// A trace of `torch.profiler`, with or without events of memory.
    Profile,
    /// A memory timeline of `torch.profiler`: bytes by category, without blocks.
    Timeline,
    /// A dump of the Vulkan Memory Allocator.
    Vma,
    /// A memory snapshot, or JSON that may be one.
    Snapshot,
    /// A table of buffers, for the planner.
    Table,
    /// A program of operators, for the planner.
    Operators,
    /// A model of ONNX, for the planner.
    Onnx,
    /// A model of TensorFlow Lite, for the planner.
    TfLite,
    /// A file that no command reads: what it is, and what to do.
    Other(&'static str),
    /// None of these.
    Unknown,
}

impl Kind {
    /// Returns what a file is that has no memory to read: what it is, and what to do.
    pub(crate) fn refused(self) -> Option<&'static str> {
        Some(match self {
            Self::Other(what) => what,
            Self::Timeline => concat!("this is a memory timeline of torch.profiler: ", record_instead!()),
            Self::Vma => "this is a dump of the Vulkan Memory Allocator, which is a state without a history",
            Self::Table => "this is a table of buffers, for `cachalot plan`: expected a memory snapshot or a record",
            Self::Operators => {
                "this is a program of operators, for `cachalot plan`: expected a memory snapshot or a record"
            }
            Self::Onnx => "this is an ONNX model, for `cachalot plan`: expected a memory snapshot or a record",
            Self::TfLite => {
                "this is a model of TensorFlow Lite, for `cachalot plan`: expected a memory snapshot or a record"
            }
            Self::Record | Self::Rmm | Self::Profile | Self::Snapshot | Self::Unknown => return None,
        })
    }
}

/// The first bytes of files that cannot be used.
const STARTS: [(&[u8], &str); 16] = [
    (
        b"version https://git-lfs.github.com/spec/",
        "this is a pointer of Git LFS in the place of the file: `git lfs pull` gets the file",
    ),
    (b"\x89PNG\r\n\x1a\n", concat!("this is a picture (PNG): ", record_instead!())),
    (b"\xff\xd8\xff", concat!("this is a picture (JPEG): ", record_instead!())),
    (b"%PDF-", concat!("this is a PDF: ", record_instead!())),
    (b"PK\x03\x04", concat!("this is a zip archive, as torch.save() writes it: unpack it, or ", record_instead!())),
    // The number with which `torch.save` began before zip archives, pickled.
    (
        b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
        concat!("this is a file of torch.save(), which has no history of memory: ", record_instead!()),
    ),
    (b"\x28\xb5\x2f\xfd", "this is compressed by zstd: decompress it first (`zstd -d`), or compress it by gzip"),
    (b"\xfd7zXZ\0", "this is compressed by xz: decompress it first (`xz -d`), or compress it by gzip"),
    (b"BZh", "this is compressed by bzip2: decompress it first (`bzip2 -d`), or compress it by gzip"),
    (b"SQLite format 3\0", "this is an SQLite database, as exports are: pass the file that it was made of"),
    (
        b"request,",
        "this is a list of requests, for `cachalot predict`, as `python -m cachalot_gpu.predict --requests` writes it",
    ),
    (b"# TYPE ", METRICS),
    (b"# HELP ", METRICS),
    // The kinds of samples of a profile.
    (b"\x0a\x04\x08", "this is a profile for pprof, as exports are: pass the file that it was made of"),
    (b"\x93NUMPY", concat!("this is an array of NumPy: ", record_instead!())),
    (b"\x7fELF", "this is a program or a library: `cachalot run` runs a program, and recorded memory is a snapshot"),
];

/// Texts that cannot be used, by a part of them.
const TEXTS: [(&str, &str); 5] = [
    (
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "this is a table of requests to a language model, which has no allocations: record the server's memory",
    ),
    ("out of memory", concat!("this is the text of an error, which has no list of the blocks: ", record_instead!())),
    ("OutOfMemoryError", concat!("this is the text of an error, which has no list of the blocks: ", record_instead!())),
    (
        "CUDA memory summary",
        concat!("this is the text of torch.cuda.memory_summary(), which has no blocks: ", record_instead!()),
    ),
    ("reserved_bytes.all", STATISTICS),
];

const METRICS: &str =
    "these are metrics in the form of OpenMetrics, as exports are: pass the file that they were made of";

const TRACE: &str = "this is a trace for Perfetto, as exports are: pass the file that it was made of";

const STATISTICS: &str =
    concat!("these are figures of torch.cuda.memory_stats(), which has no blocks: ", record_instead!());

/// The opcode PROTO, the first byte of every pickle of protocol 2 and later.
const PICKLE_PROTO: u8 = 0x80;

/// The first line of a record in text lines.
const RECORD: &[u8] = b"action,";

/// The first line of RMM's logs.
pub(super) const RMM: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream";

/// The mark of models of TensorFlow Lite, after four bytes.
const TFLITE: &[u8] = b"TFL3";

/// Keys of a snapshot, at its first level.
const OF_SNAPSHOTS: [&str; 4] = ["segments", "device_traces", "allocator_settings", "host_segments"];

/// Keys of a trace of `torch.profiler`, at its first level.
const OF_PROFILES: [&str; 5] =
    ["traceEvents", "schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds"];

/// Returns what a file is by its first bytes, as many as a reader has at once.
pub(crate) fn of(start: &[u8]) -> Kind {
    if start.starts_with(RECORD) {
        return Kind::Record;
    }
    if start.starts_with(RMM) {
        return Kind::Rmm;
    }
    if let Some((_, what)) = STARTS.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Kind::Other(what);
    }
    if start.first() == Some(&PICKLE_PROTO) && has_statistics(start) {
        return Kind::Other(STATISTICS);
    }
    if start.first() == Some(&PICKLE_PROTO) || is_early_pickle(start) {
        return Kind::Snapshot;
    }
    // A packet that starts with the clocks.
    if let [0x0a, 1..=0x7f, 0x32, ..] = start {
        return Kind::Other(TRACE);
    }
    if start.get(4..8) == Some(TFLITE) {
        return Kind::TfLite;
    }
    if is_onnx(start) {
        return Kind::Onnx;
    }
    let json = start.trim_ascii_start();
    match json.first() {
        Some(b'{' | b'[') => of_json(json),
        _ => of_text(start),
    }
}

/// Returns whether a file starts as a pickle of protocol 0 or 1: with a list or a dictionary, and
/// its number.
fn is_early_pickle(start: &[u8]) -> bool {
    let starts: [&[u8]; 6] = [b"(dp", b"(lp", b"}q", b"]q", b"}r", b"]r"];
    starts.iter().any(|early| start.starts_with(early))
}

/// Returns whether the first keys of a pickle are those of `torch.cuda.memory_stats()`.
fn has_statistics(pickle: &[u8]) -> bool {
    let start = &pickle[..pickle.len().min(256)];
    [&b"active.all."[..], b"_bytes.all."].iter().any(|key| start.windows(key.len()).any(|part| part == *key))
}

/// Returns whether a file starts as an ONNX model: with the version of the format, a number below
/// 32, and another field of a model. The format has no mark.
fn is_onnx(start: &[u8]) -> bool {
    // Number times 8, and the type: names and texts (2, 3, 4, 6), a version (5), the graph (7),
    // sets of operators (8), notes (14).
    matches!(start, [0x08, 1..32, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42 | 0x72, ..])
}

fn of_json(json: &[u8]) -> Kind {
    let seen = seen(json);
    let has =
        |level: u32, keys: &[&str]| seen.keys.iter().any(|(at, key)| *at == level && keys.contains(&key.as_str()));
    // A wrapped snapshot has its keys at the second level.
    if has(0, &OF_SNAPSHOTS) || has(1, &OF_SNAPSHOTS) {
        Kind::Snapshot
    } else if has(0, &OF_PROFILES) || has(0, &["ph"]) && has(0, &["ts", "pid"]) {
        Kind::Profile
    } else if has(0, &["Total"]) && has(1, &["BlockBytes", "UsedBytes"]) {
        Kind::Vma
    } else if has(0, &["input_length", "hash_ids"]) {
        Kind::Other("these are requests to a language model, which have no allocations: record the server's memory")
    } else if has(0, &["operators", "values"]) {
        Kind::Operators
    } else if has(0, &["reserved_bytes.all.current", "active.all.allocated", "active.all.current"]) {
        Kind::Other(STATISTICS)
    } else if seen.starts_with_numbers {
        Kind::Timeline
    } else {
        Kind::Snapshot
    }
}

fn of_text(start: &[u8]) -> Kind {
    let text = String::from_utf8_lossy(start);
    if let Some((_, what)) = TEXTS.iter().find(|(part, _)| text.contains(part)) {
        return Kind::Other(what);
    }
    let header = text.lines().next().unwrap_or_default();
    let is_of_table = |name: &str| header.split(',').any(|column| column.trim() == name);
    if is_of_table("lower") && is_of_table("upper") {
        return Kind::Table;
    }
    Kind::Unknown
}

/// The part of a JSON text that was seen.
#[derive(Default)]
struct Seen {
    /// The keys, with the number of objects around the object of the key. Lists are no level.
    keys: Vec<(u32, String)>,
    /// Whether the text is a list that starts with a list of numbers.
    starts_with_numbers: bool,
}

/// Greatest level of the keys that are noted.
const MOST_LEVELS: u32 = 1;

/// Returns the keys in the first bytes of a JSON text.
fn seen(json: &[u8]) -> Seen {
    let mut seen = Seen::default();
    // The bytes end in the middle of the text, which is an error after the last key.
    let _ = Look { seen: &mut seen, level: 0, lists: 0 }.deserialize(&mut serde_json::Deserializer::from_slice(json));
    seen
}

/// Notes the keys of a value.
struct Look<'s> {
    seen: &'s mut Seen,
    level: u32,
    /// Number of lists around the value.
    lists: u32,
}

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.level > MOST_LEVELS {
            return deserializer.deserialize_ignored_any(IgnoredAny).map(drop);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            self.seen.keys.push((self.level, key));
            map.next_value_seed(Look { seen: self.seen, level: self.level + 1, lists: self.lists })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let (level, lists) = (self.level, self.lists + 1);
        while list.next_element_seed(Look { seen: self.seen, level, lists })?.is_some() {}
        Ok(())
    }

    fn visit_i64<E>(mut self, _: i64) -> Result<(), E> {
        self.number();
        Ok(())
    }

    fn visit_u64<E>(mut self, _: u64) -> Result<(), E> {
        self.number();
        Ok(())
    }

    fn visit_f64<E>(mut self, _: f64) -> Result<(), E> {
        self.number();
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

impl Look<'_> {
    fn number(&mut self) {
        self.seen.starts_with_numbers |= self.lists == 2 && self.level == 0 && self.seen.keys.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, of};

    #[test]
    fn a_file_is_recognized_by_its_first_bytes() {
        for (start, kind) in [
            ("action,addr,size,stream\n", Kind::Record),
            ("Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate,0x0,3,0", Kind::Rmm),
            (r#"{"schemaVersion": 1, "deviceProp"#, Kind::Profile),
            (r#"[{"ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": 1, "ts": 2"#, Kind::Profile),
            (r#" {"segments": [{"address": 1, "ph": "#, Kind::Snapshot),
            (r#"[{"segments": [], "ts": 1"#, Kind::Snapshot),
            (r#"{"0": {"segments": [], "ts": 1"#, Kind::Snapshot),
            ("[[-1, 1, 128000, 7], [-1, 1", Kind::Timeline),
            ("[[1795989796282325, 1795989", Kind::Timeline),
            (r#"{"General": {"API": "Vulkan"}, "Total": {"BlockCount": 1, "BlockBytes": 2"#, Kind::Vma),
            ("(dp0\nVsegments\n", Kind::Snapshot),
            ("id,lower,upper,size\n1,2,3,4\n", Kind::Table),
            (r#"{"values": [], "operators": []}"#, Kind::Operators),
            ("\u{1}\u{2}", Kind::Unknown),
            ("A text about memory.", Kind::Unknown),
            ("", Kind::Unknown),
            ("[", Kind::Snapshot),
            ("{\"", Kind::Snapshot),
        ] {
            assert_eq!(of(start.as_bytes()), kind, "{start}");
        }
        assert_eq!(of(b"\x80\x04\x95"), Kind::Snapshot);
        assert_eq!(of(b"\x08\x0a\x12\x07pytorch\x3a"), Kind::Onnx);
        assert_eq!(of(b"\x1c\0\0\0TFL3\x14\0"), Kind::TfLite);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (start, what) in [
            (&b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n"[..], "a pointer of Git LFS"),
            (b"\x89PNG\r\n\x1a\n\0\0", "a picture (PNG)"),
            (b"PK\x03\x04\0\0", "a zip archive, as torch.save()"),
            (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "a file of torch.save()"),
            (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "requests to a language model"),
            (br#"{"timestamp": 0, "input_length": 6758, "output_length": 500"#, "requests to a language model"),
            (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", "the text of an error"),
            (b"|======|\n|   PyTorch CUDA memory summary, device ID 0  |", "torch.cuda.memory_summary()"),
            (br#"{"active.all.allocated": 1, "#, "torch.cuda.memory_stats()"),
            (b"\x80\x04\x95K\0\0\0\0\0\0\0}\x94(\x8c\x14active.all.allocated\x94K\x01u.", "torch.cuda.memory_stats()"),
            (b"request,block,size,stream,site\n", "a list of requests"),
            (b"# TYPE cachalot_reserved_bytes gauge\n", "OpenMetrics"),
            (b"\x0a\x12\x32\x08\x0a\x04\x08\x01", "a trace for Perfetto"),
            (b"\x0a\x04\x08\x01\x10\x02", "a profile for pprof"),
        ] {
            let Kind::Other(said) = of(start) else { panic!("{}", String::from_utf8_lossy(start)) };
            assert!(said.contains(what), "{said}");
        }
    }
}
