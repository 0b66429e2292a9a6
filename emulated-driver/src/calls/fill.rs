//! Fills: a number of 1, 2 or 4 bytes, written again and again, in a line or in rows.

use super::copy::done;
use super::submit::{resolve, submit};
use crate::backing::space::DeviceAccess;
use crate::call::Call;
use crate::tables::memory::Source;
use crate::tables::work::Work;
use crate::values::code::{Answer, Code};

/// A number to write: four bytes, of which the number are the first ones.
#[derive(Clone, Copy)]
struct Pattern {
    bytes: [u8; 4],
    /// The bytes of the number.
    width: u64,
}

/// Defines the functions for each type of number: a line and rows on stream 0, and a line and rows
/// on a stream.
macro_rules! fills {
    ($($type:ty: $line:ident, $rows:ident, $line_on:ident, $rows_on:ident;)*) => { $(
        pub(crate) fn $line(call: &mut Call, to: u64, value: $type, count: u64) -> Answer<()> {
            fill_at_once(call, to, 0, value.into(), count, 1)
        }

        pub(crate) fn $rows(
            call: &mut Call,
            to: u64,
            pitch: u64,
            value: $type,
            width: u64,
            height: u64,
        ) -> Answer<()> {
            fill_at_once(call, to, pitch, value.into(), width, height)
        }

        pub(crate) fn $line_on(call: &mut Call, to: u64, value: $type, count: u64, stream: u64) -> Answer<()> {
            fill(call, to, 0, value.into(), count, 1, stream)
        }

        pub(crate) fn $rows_on(
            call: &mut Call,
            to: u64,
            pitch: u64,
            value: $type,
            width: u64,
            height: u64,
            stream: u64,
        ) -> Answer<()> {
            fill(call, to, pitch, value.into(), width, height, stream)
        }
    )* };
}
fills! {
    u8: cuMemsetD8_v2, cuMemsetD2D8_v2, cuMemsetD8Async, cuMemsetD2D8Async;
    u16: cuMemsetD16_v2, cuMemsetD2D16_v2, cuMemsetD16Async, cuMemsetD2D16Async;
    u32: cuMemsetD32_v2, cuMemsetD2D32_v2, cuMemsetD32Async, cuMemsetD2D32Async;
}

impl From<u8> for Pattern {
    fn from(value: u8) -> Self {
        Self { bytes: [value; 4], width: 1 }
    }
}

impl From<u16> for Pattern {
    fn from(value: u16) -> Self {
        let [first, second] = value.to_ne_bytes();
        Self { bytes: [first, second, first, second], width: 2 }
    }
}

impl From<u32> for Pattern {
    fn from(value: u32) -> Self {
        Self { bytes: value.to_ne_bytes(), width: 4 }
    }
}

/// Queues a fill of `height` rows of `count` numbers.
fn fill(call: &mut Call, to: u64, pitch: u64, value: Pattern, count: u64, height: u64, stream: u64) -> Answer<()> {
    let Pattern { bytes: value, width } = value;
    let row = count.checked_mul(width).ok_or(Code::INVALID_VALUE)?;
    if row == 0 || height == 0 {
        return Ok(());
    }
    if !to.is_multiple_of(width) || (height > 1 && (pitch < row || !pitch.is_multiple_of(width))) {
        return Err(Code::INVALID_VALUE);
    }
    let before = (height - 1).checked_mul(pitch);
    let all = before.and_then(|before| before.checked_add(row)).ok_or(Code::INVALID_VALUE)?;
    let device = resolve(call, to, all, stream, DeviceAccess::ReadWrite)?;
    let rows = (0..height).map(|number| Work::Fill { device, address: to + number * pitch, bytes: row, value });
    submit(call, stream, Work::in_order(rows.collect()))
}

/// Queues a fill on stream 0. The host waits for a fill of managed memory only.
fn fill_at_once(call: &mut Call, to: u64, pitch: u64, value: Pattern, count: u64, height: u64) -> Answer<()> {
    fill(call, to, pitch, value, count, height, 0)?;
    let found = call.state.memory.containing(to);
    let managed = found.is_some_and(|(_, allocation)| allocation.source == Source::Managed);
    if managed { done(call, 0) } else { Ok(()) }
}
