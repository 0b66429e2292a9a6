//! Streams that end without a report: the program in `stress/gpu`, on the emulated driver, which
//! aborts at any use of the handle of a destroyed stream.

use crate::common::{Link, build, emulated, root, succeed};

#[test]
fn streams_that_end_unreported_are_never_touched_and_memory_stays_flat() {
    let Some(program) = build(&root().join("stress/gpu/unreported_streams.c"), Link::Static, &[]) else { return };
    let mut command = emulated(&program);
    command.arg("200").env("CACHALOT_EMU_DEVICES", "1").env("CACHALOT_EMU_MEMORY", (4_u64 << 30).to_string());
    let printed = succeed(&mut command).expect("the program runs");
    let rows: Vec<Vec<&str>> = printed.lines().skip(1).map(|line| line.rsplitn(7, ',').collect()).collect();
    assert!(rows.len() > 30, "{printed}");
    for row in rows {
        assert_eq!(row[3], "0", "{row:?}");
        assert_eq!(row[0], "0", "an emptied cache holds memory: {row:?}");
    }
}
