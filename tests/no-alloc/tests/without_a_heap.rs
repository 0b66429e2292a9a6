//! Runs the program, and checks that no part reaches for the heap.

/// The allocator is a few hundred KiB, and moved more than once in an unoptimised build.
const STACK_BYTES: usize = 16 << 20;

#[test]
fn the_program_allocates_nothing() {
    let run = || {
        let mut result = Ok(());
        let counted = allocation_counter::measure(|| result = cachalot_no_alloc::run());
        (result, counted.count_total)
    };
    let ran = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).unwrap();
    let (result, allocations) = ran.join().unwrap();
    result.unwrap_or_else(|failed| panic!("{failed:?}"));
    assert_eq!(allocations, 0);
}
