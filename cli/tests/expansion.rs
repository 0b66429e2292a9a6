//! Short files with a long expansion are refused by a bound.

use crate::common::{cachalot, folder, write};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::Path;

/// Builds a gzip file of `start` followed by 65 MiB of a byte.
fn bomb(start: &str, byte: u8) -> Vec<u8> {
    let gzip = |content: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content).expect("memory takes it");
        encoder.finish().expect("memory takes it")
    };
    // A gzip file may be a concatenation of gzip files.
    [gzip(start.as_bytes()), gzip(&vec![byte; 1 << 20]).repeat(65)].concat()
}

fn refuse(command: &str, file: &Path, complaint: &str) {
    let finished = cachalot([Path::new(command), file]);
    assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{command}: {}", finished.errors);
    let name = file.display();
    assert!(finished.errors.starts_with(&format!("{name}:")), "{command}: {}", finished.errors);
    assert!(finished.errors.ends_with(&format!(": {complaint}\n")), "{command}: {}", finished.errors);
    assert_eq!(finished.errors.lines().count(), 1, "{command}: {}", finished.errors);
}

#[test]
fn compressed_files_that_expand_beyond_their_bound_are_refused() {
    let folder = folder("gzip_bombs");
    let complaint = "the compressed data expands to more than 67108864 bytes: the most is 128 for each compressed byte, \
                     or 67108864 if that is more; decompress the file to read it anyway";
    for (name, start, byte, command) in [
        ("record", "action,addr,size,stream\n", b'a', "replay"),
        ("snapshot", "{", b' ', "inspect"),
        ("table", "id,lower,upper,size\n", b'1', "plan"),
    ] {
        let file = write(&folder, &format!("{name}.gz"), bomb(start, byte));
        assert!(file.metadata().expect("it was just written").len() < 100_000);
        refuse(command, &file, complaint);
    }
    // The end of a run is a file next to the record.
    let record = write(&folder, "run.csv", "action,addr,size,stream\nA,200,512,0\n");
    let expected = write(&folder, "run.expected.json.gz", bomb("{", b' '));
    let finished = cachalot([Path::new("replay"), &record]);
    assert_eq!((finished.status, finished.errors), (2, format!("{}:1: {complaint}\n", expected.display())));
}

#[test]
fn a_pickle_whose_values_refer_to_each_other_is_refused() {
    // Each list has the previous list twice, 40 levels deep: EMPTY_LIST, BINPUT, POP; then BINGET
    // twice, TUPLE2, BINPUT, POP.
    let key = |key: &str| [b"X", &(key.len() as u32).to_le_bytes()[..], key.as_bytes()].concat();
    let lists = [&b"]q\x000"[..], &b"h\x00h\x00\x86q\x000".repeat(40), b"h\x00"].concat();
    let parts = [b"\x80\x02}(".to_vec(), key("segments"), b"]".to_vec(), key("device_traces"), b"]".to_vec(), key("x")];
    let pickle = [parts.concat(), lists, b"u.".to_vec()].concat();
    let file = write(&folder("pickle_bomb"), "bomb.pickle", pickle);
    for command in ["inspect", "replay", "plan", "compare"] {
        refuse(
            command,
            &file,
            "not a memory snapshot: shared values expand to more than 65536: the most is 8 values for each byte of the \
             pickle, or 65536 if that is more",
        );
    }
}
