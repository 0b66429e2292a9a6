//! The limits of a driver: addresses, and events for other processes.

use crate::sheet::{Sheet, code, yes};

/// The most reservations that are asked for.
const RESERVATIONS: usize = 2000;
/// The most events that are asked for.
const EVENTS: usize = 10_000;

/// Asks for addresses and events.
pub(crate) fn questions(sheet: &Sheet) {
    sheet.begin();
    addresses(sheet);
    events(sheet, "for other processes", 6);
    events(sheet, "without time", 2);
}

/// Reservations of four times the device, and the longest one.
fn addresses(sheet: &Sheet) {
    const GIB: usize = 1 << 30;
    let total = sheet.info().expect("cuMemGetInfo").1;
    let bytes = (4 * total).div_ceil(GIB) * GIB;
    let (mut low, mut high) = (0, 1 << 18);
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        match sheet.reserve(middle * GIB) {
            Ok(address) => {
                sheet.cuMemAddressFree(address, middle * GIB);
                low = middle;
            }
            Err(_) => high = middle,
        }
    }
    sheet.line("GiB of the longest reservation", low);
    sheet.line("the code of a longer one", code(sheet.reserve((low + 1) * GIB)));
    let mut all = Vec::new();
    let refusal = loop {
        match sheet.reserve(bytes) {
            Ok(_) if all.len() == RESERVATIONS => break 0,
            Ok(address) => all.push(address),
            Err(code) => break code,
        }
    };
    sheet.remark(format!("{} reservations of {} GiB, which is four times the device", all.len(), bytes >> 30));
    sheet.line("the code of a reservation too many", refusal);
    sheet.line("cuMemAlloc_v2 then", code(sheet.alloc(1 << 20)));
    sheet.line("cuMemAlloc_v2 of 256 MiB then", code(sheet.alloc(256 << 20)));
    sheet.line("cuMemAllocAsync then", code(sheet.alloc_async(64 << 20, 0)));
    sheet.line("cuStreamCreate then", code(sheet.stream(1)));
    sheet.line("cuCtxSynchronize then", sheet.cuCtxSynchronize());
    if let Some(address) = all.pop() {
        sheet.line("cuMemAddressFree of one", sheet.cuMemAddressFree(address, bytes));
        let again = sheet.reserve(bytes);
        sheet.line("one more then", code(again));
        all.extend(again.ok());
    }
    let answers: Vec<u32> = all.into_iter().map(|address| sheet.cuMemAddressFree(address, bytes)).collect();
    sheet.line("cuMemAddressFree of all", yes(answers.iter().all(|&code| code == 0)));
}

/// Events with flags, until one is refused.
fn events(sheet: &Sheet, kind: &str, flags: u32) {
    let create = || {
        let mut event = 0;
        match sheet.cuEventCreate(&mut event, flags) {
            0 => Ok(event),
            code => Err(code),
        }
    };
    let mut all = Vec::new();
    let refusal = loop {
        match create() {
            Ok(event) if all.len() == EVENTS => {
                sheet.cuEventDestroy_v2(event);
                break 0;
            }
            Ok(event) => all.push(event),
            Err(code) => break code,
        }
    };
    sheet.line(&format!("events {kind}"), all.len());
    sheet.line(&format!("the code of an event too many {kind}"), refusal);
    sheet.line(&format!("cuEventCreate of another kind after the events {kind}"), code(sheet.event()));
    let (mut own, mut other) = (0, 0);
    sheet.cuCtxGetCurrent(&mut own);
    assert_eq!(sheet.cuCtxCreate_v2(&mut other, 0, 0), 0, "cuCtxCreate");
    sheet.line(&format!("cuEventCreate in another context after the events {kind}"), code(create()));
    sheet.cuCtxDestroy_v2(other);
    sheet.cuCtxSetCurrent(own);
    for event in all.drain(all.len() - 16..) {
        sheet.cuEventDestroy_v2(event);
    }
    let more = std::iter::repeat_with(create).take(20).filter_map(Result::ok).collect::<Vec<u64>>();
    sheet.line(&format!("of twenty more events after sixteen have gone {kind}"), more.len());
    for event in all.into_iter().chain(more) {
        sheet.cuEventDestroy_v2(event);
    }
}
