//! The calls of a program besides requests and frees: captures, the elastic range, and parked
//! memory.

use crate::defects::Defect;
use crate::theorems::{Theorem, Violation};
use crate::world::{DEVICE, PAGE, World, line, stream};
use cachalot_core::{Error, ParkMode, ParkOrder, ParkState, ParkTarget, Reservation, Route, RoutePurpose};

impl World {
    /// Begins the capture of a stream.
    pub(crate) fn begin(&mut self, on: u8) -> Result<(), Error> {
        self.name(on);
        if let Some(pool) = self.pool {
            self.core.pools(DEVICE)?.begin_route(pool, Route::Stream(stream(on)), RoutePurpose::Capture)?;
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
        self.core.pools(DEVICE)?.end_route(pool, RoutePurpose::Capture)?;
        self.core.pools(DEVICE).unwrap().release(pool)
    }

    /// Commits a page of the range, and writes to the page.
    pub(crate) fn commit(&mut self, page: u8, on: u8, violation: &mut Option<Violation>) -> Result<(), Error> {
        self.name(on);
        let Some(Reservation { range, base, .. }) = self.range else { return Ok(()) };
        let offset = u64::from(page) * PAGE;
        self.core.ranges(DEVICE)?.commit(range, offset, PAGE, stream(on))?;
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
        self.core.ranges(DEVICE)?.decommit(range, u64::from(page) * PAGE, PAGE, stream(on))?;
        self.committed[usize::from(page)] = None;
        let end = self.device().books().order.end(line(on));
        self.departed[usize::from(page)] = Some(end);
        Ok(())
    }

    /// Parks the memory of a stream, and notes the contents of its blocks.
    pub(crate) fn park(&mut self, on: u8) -> Result<(), Error> {
        let device = &self.core.device(DEVICE).expect("there is one device").inner;
        let marks = &mut self.contents[usize::from(on)];
        self.live.iter().filter(|live| live.stream == on).for_each(|live| marks.add(device, live.ptr, live.bytes));
        let target = ParkTarget::Stream(stream(on));
        let parking = self.core.parking(DEVICE)?;
        let parked = parking.park(target, ParkMode::Keep, ParkOrder::Streams);
        self.parked[usize::from(on)] = parking.report(target)?.state != ParkState::Awake;
        self.loose.clear();
        self.rests.retain(|&other| other != on);
        self.rests.extend(self.parked[usize::from(on)].then_some(on));
        parked
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
        if woken.is_ok()
            && let Err(what) = core::mem::take(&mut self.contents[usize::from(on)]).check(&self.device().inner)
        {
            *violation = Some(Theorem::Parked.violated(what));
        }
        woken
    }
}
