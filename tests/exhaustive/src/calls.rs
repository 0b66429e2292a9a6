//! The calls of a program besides requests and frees: captures, the elastic range, and parked
//! memory.

use crate::defects::Defect;
use crate::theorems::{Theorem, Violation};
use crate::world::{DEVICE, PAGE, World, line, stream};
use cachalot_core::{Error, ParkMode, ParkOrder, ParkState, ParkTarget, Reservation, Route};

impl World {
    /// Begins the capture of a stream.
    pub(crate) fn begin(&mut self, on: u8) -> Result<(), Error> {
        self.name(on);
        if let Some(pool) = self.pool {
            self.core.begin_capture(DEVICE, pool, Route::Stream(stream(on)))?;
        }
        self.device().inner.set_capturing(stream(on), true);
        self.capture = Some(on);
        Ok(())
    }

    /// Ends the capture, and gives the graph up.
    pub(crate) fn end_capture(&mut self) -> Result<(), Error> {
        let Some(on) = self.capture.take() else { return Ok(()) };
        self.device().inner.set_capturing(stream(on), false);
        self.live.iter_mut().for_each(|live| live.is_captured = false);
        let Some(pool) = self.pool else { return Ok(()) };
        // The release of the pool alone would end the capture.
        if self.device().has(Defect::LeftCapture) {
            return Ok(());
        }
        self.core.end_capture(DEVICE, pool)?;
        self.core.release_pool(DEVICE, pool)
    }

    /// Commits a page of the range, and writes to the page.
    pub(crate) fn commit(&mut self, page: u8, on: u8, violation: &mut Option<Violation>) -> Result<(), Error> {
        self.name(on);
        let Some(Reservation { range, base, .. }) = self.range else { return Ok(()) };
        let offset = u64::from(page) * PAGE;
        self.core.commit_range(DEVICE, range, offset, PAGE, stream(on))?;
        if let Err(why) = self.device().launch(stream(on), base.offset(offset), PAGE) {
            *violation = Some(Theorem::Order.violated(format!("the committed page {page}: {why}")));
        }
        self.committed[usize::from(page)] = Some(on);
        Ok(())
    }

    /// Decommits a page of the range, after the work on the page.
    pub(crate) fn decommit(&mut self, page: u8, on: u8) -> Result<(), Error> {
        let (Some(Reservation { range, .. }), Some(user)) = (self.range, self.committed[usize::from(page)]) else {
            return Ok(());
        };
        if user != on {
            self.device().order(stream(on), stream(user)).map_err(Error::Device)?;
        }
        self.core.decommit_range(DEVICE, range, u64::from(page) * PAGE, PAGE, stream(on))?;
        self.committed[usize::from(page)] = None;
        let end = self.device().books().order.end(line(on));
        self.departed[usize::from(page)] = Some(end);
        Ok(())
    }

    /// Parks the memory of a stream, after every page was written to.
    pub(crate) fn park(&mut self, on: u8) -> Result<(), Error> {
        self.write_contents(on);
        let target = ParkTarget::Stream(stream(on));
        let parking = self.core.parking(DEVICE)?;
        let parked = parking.park(target, ParkMode::Keep, ParkOrder::Streams);
        self.parked[usize::from(on)] = parking.report(target)?.state != ParkState::Awake;
        self.loose.clear();
        self.rests.retain(|&other| other != on);
        self.rests.extend(self.parked[usize::from(on)].then_some(on));
        parked
    }

    /// Writes a number to every page of the stream's blocks, and notes the contents.
    fn write_contents(&mut self, on: u8) {
        let device = self.core.device(DEVICE).expect("there is one device");
        for live in self.live.iter().filter(|live| live.stream == on) {
            for offset in (0..live.bytes).step_by(PAGE as usize) {
                let at = live.ptr.offset(offset);
                self.stamp += 1;
                if device.inner.write(at, self.stamp) {
                    self.contents[usize::from(on)].push((at, self.stamp));
                }
            }
        }
        // Blocks may share a page, also with a block of the other stream: the last number written
        // holds for all.
        for (at, expected) in self.contents.iter_mut().flatten() {
            if let Some(found) = device.inner.read(*at) {
                *expected = found;
            }
        }
    }

    /// Wakes the memory of a stream, and compares the contents.
    pub(crate) fn wake(&mut self, on: u8, violation: &mut Option<Violation>) -> Result<(), Error> {
        let target = ParkTarget::Stream(stream(on));
        let parking = self.core.parking(DEVICE)?;
        let woken = parking.wake(target);
        self.parked[usize::from(on)] = parking.report(target)?.state != ParkState::Awake;
        if !self.parked[usize::from(on)] {
            self.rests.retain(|&other| other != on);
        }
        if woken.is_ok() {
            for (at, expected) in core::mem::take(&mut self.contents[usize::from(on)]) {
                let found = self.device().inner.read(at);
                if found != Some(expected) {
                    let text = format!("{found:?} stands at {at}, {expected} stood there before the park");
                    *violation = Some(Theorem::Parked.violated(text));
                }
            }
        }
        woken
    }
}
