//! Repeats every decision of recorded programs, and fails at the first difference:
//! `check RECORD...`. With the feature `cachalot-core/paranoid`, every invariant of the allocator
//! is checked around each operation.

use cachalot_replay::replay::{Options, replay};
use cachalot_replay::trace::Trace;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options { check: true, repeat: 1, ..Options::default() };
    for file in std::env::args_os().skip(1) {
        for trace in Trace::load(Path::new(&file))? {
            let checked = replay(&trace, &options)?.checked.expect("the options ask for a check");
            if let Some(first) = checked.first {
                return Err(first.into());
            }
            println!("{}: {} decisions compared", trace.name, checked.decisions);
        }
    }
    Ok(())
}
