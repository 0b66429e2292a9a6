//! Asks about `cuMemAlloc` and related functions.

use crate::sheet::{PAGE, Sheet, code, yes};
use std::time::Instant;

/// Asks for codes of wrong calls and for the cost of sizes.
pub(crate) fn questions(sheet: &Sheet) {
    sheet.begin();
    sheet.line("cuMemAlloc_v2 of 0", code(sheet.alloc(0)));
    for (name, bytes) in
        [("2^60", 1 << 60), ("2^63", 1 << 63), ("2^64 - 1", usize::MAX), ("2^64 - 512", usize::MAX - 511)]
    {
        sheet.line(&format!("cuMemAlloc_v2 of {name}"), code(sheet.alloc(bytes)));
    }
    let total = sheet.info().expect("cuMemGetInfo").1;
    sheet.line("cuMemAlloc_v2 of the total and one page", code(sheet.alloc(total + PAGE)));
    frees(sheet);
    sizes(sheet);
    ranges(sheet);
    let address = sheet.alloc(PAGE).expect("memory");
    sheet.line("cuMemsetD8Async of 0 bytes nowhere", sheet.cuMemsetD8Async(4096, 0, 0, 0));
    sheet.line("cuMemsetD8Async nowhere", sheet.cuMemsetD8Async(4096, 0, 1, 0));
    sheet.line("cuMemsetD8Async past the end", sheet.cuMemsetD8Async(address, 0, PAGE + 1, 0));
    sheet.line("cuMemcpyHtoD_v2 from null", sheet.cuMemcpyHtoD_v2(address, std::ptr::null(), 1));
    sheet.line("cuCtxSynchronize at the end", sheet.cuCtxSynchronize());
}

/// Asks about wrong frees.
fn frees(sheet: &Sheet) {
    let address = sheet.alloc(3 * PAGE).expect("memory");
    let local = 0_u64;
    sheet.line("cuMemFree_v2 of 0", sheet.cuMemFree_v2(0));
    sheet.line("cuMemFree_v2 of 1", sheet.cuMemFree_v2(1));
    sheet.line("cuMemFree_v2 of a host address", sheet.cuMemFree_v2(std::ptr::from_ref(&local) as u64));
    sheet.line("cuMemFree_v2 of an interior address", sheet.cuMemFree_v2(address + 512));
    sheet.line("cuMemFree_v2 of the end", sheet.cuMemFree_v2(address + 3 * PAGE as u64));
    sheet.line("cuMemFree_v2", sheet.cuMemFree_v2(address));
    sheet.line("cuMemFree_v2 again", sheet.cuMemFree_v2(address));
    let again = sheet.alloc(3 * PAGE).expect("memory");
    sheet.line("the address comes again", yes(again == address));
    sheet.cuMemFree_v2(again);
    let small = sheet.alloc(512).expect("memory");
    let keeper = sheet.alloc(512).expect("memory");
    sheet.line("cuMemFree_v2 inside a small allocation", sheet.cuMemFree_v2(small + 256));
    sheet.line("cuMemFree_v2 of a small allocation", sheet.cuMemFree_v2(small));
    sheet.line("cuMemFree_v2 of a small allocation again", sheet.cuMemFree_v2(small));
    sheet.cuMemFree_v2(keeper);
}

/// Asks for the memory taken by allocations.
fn sizes(sheet: &Sheet) {
    let free = || sheet.info().expect("cuMemGetInfo").0;
    // The first small allocation may open a page for good.
    let warm = sheet.alloc(1).expect("memory");
    let mut addresses: Vec<u64> = (0..16).map(|_| sheet.alloc(1).expect("memory")).collect();
    addresses.sort_unstable();
    let alignment = addresses.iter().map(|address| address.trailing_zeros()).min().unwrap_or(0);
    let apart = addresses.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(0);
    sheet.line("alignment of 1-byte allocations", 1_u64 << alignment);
    sheet.line("distance of 1-byte allocations", apart);
    for address in addresses {
        sheet.cuMemFree_v2(address);
    }
    for bytes in [1 << 20, (1 << 20) + 1, PAGE, PAGE + 1, 3 << 20, 5 << 20] {
        let before = free();
        let address = sheet.alloc(bytes).expect("memory");
        sheet.line(&format!("memory taken by {bytes} bytes"), before - free());
        sheet.cuMemFree_v2(address);
        sheet.line(&format!("memory kept of {bytes} bytes"), before - free());
    }
    sheet.cuMemFree_v2(warm);
}

/// `cuMemGetAddressRange`.
fn ranges(sheet: &Sheet) {
    let address = sheet.alloc(5000).expect("memory");
    let range = |at| {
        let (mut base, mut bytes) = (0, 0);
        match sheet.cuMemGetAddressRange_v2(&mut base, &mut bytes, at) {
            0 => format!("0 base {} bytes {bytes}", yes(base == address)),
            code => code.to_string(),
        }
    };
    sheet.line("cuMemGetAddressRange_v2 of the base", range(address));
    sheet.line("cuMemGetAddressRange_v2 of the last byte", range(address + 4999));
    sheet.line("cuMemGetAddressRange_v2 nowhere", range(4096));
    sheet.cuMemFree_v2(address);
    sheet.line("cuMemGetAddressRange_v2 after the free", range(address));
}

/// Reports the contents of new memory and the cost of filling, for the reader.
pub(crate) fn contents(sheet: &Sheet) {
    sheet.begin();
    let mark = vec![0x3c; PAGE];
    let address = sheet.alloc(PAGE).expect("memory");
    assert_eq!(sheet.write(address, &mark), 0, "cuMemcpyHtoD");
    sheet.cuMemFree_v2(address);
    let again = sheet.alloc(PAGE).expect("memory");
    let seen = sheet.read(again, PAGE).expect("cuMemcpyDtoH");
    let kept = yes(seen == mark);
    sheet.remark(format!("contents survive a free and an allocation: {kept}, the first byte is {:#x}", seen[0]));
    sheet.cuMemFree_v2(again);
    let bytes = sheet.info().expect("cuMemGetInfo").0.min(1 << 30) / 2;
    let large = sheet.alloc(bytes).expect("memory");
    sheet.cuMemsetD8Async(large, 1, bytes, 0);
    sheet.cuCtxSynchronize();
    let begin = Instant::now();
    sheet.cuMemsetD8Async(large, 2, bytes, 0);
    sheet.cuCtxSynchronize();
    let micros = begin.elapsed().as_micros();
    sheet.remark(format!("cuMemsetD8Async of {} MiB and its wait: {micros} us", bytes >> 20));
}
