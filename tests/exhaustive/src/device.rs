//! A simulated device whose next call can be made to fail, with an account of streams, addresses
//! and mappings.
//!
//! New addresses are the lowest that are free, so addresses depend on the memory held and not on
//! earlier memory.

use crate::defects::Defect;
use crate::order::{Order, Place, STREAMS};
use cachalot_core::forward::{
    ForwardContents, ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder,
};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Call, Contents, DevicePtr, DeviceResult, ErrorKind, Event, PhysicalHandle, Saved, Segments, StreamId, StreamOrder,
    VirtualMemory,
};
use cachalot_tests::claims::{self, Piece};
use cachalot_tests::consistency::Simulated;
use cachalot_tests::failures;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use std::collections::BTreeMap;

/// The lowest address.
pub const FIRST_ADDRESS: u64 = 1 << 44;
/// The alignment of segments and reservations, in bytes.
const ALIGNMENT: u64 = 2 << 20;

/// A planned failure of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Plan {
    /// The calls before the failing call.
    pub after: u8,
    /// The kind of the error.
    pub is_out_of_memory: bool,
}

/// The last answers to two questions about a stream.
#[derive(Clone, Copy, Default, Debug)]
pub struct Questions {
    /// Whether an event was complete right behind its recording.
    pub was_complete_at_once: Option<bool>,
    /// Whether the stream is idle, as far as the device tells. The outer value is missing before
    /// the first question.
    pub is_idle: Option<Option<bool>>,
}

/// The account of a device.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Books {
    /// The order of the work.
    pub order: Order,
    /// The place of each event, if recorded.
    pub events: BTreeMap<u64, Option<Place>>,
    /// The events that the core may still poll, in the order of their recording, each with its
    /// number among frees and recordings.
    pub recorded: Vec<(u64, u64)>,
    /// Number of frees and recordings so far.
    pub turns: u64,
    /// The event of the call before, if that call recorded an event.
    just_recorded: Option<u64>,
    /// For each stream, the last answers by which the core decides about further questions.
    pub questions: [Questions; STREAMS],
    /// Segments and reservations: address → length.
    pub taken: BTreeMap<u64, u64>,
    /// The addresses of the segments, oldest first.
    pub births: Vec<u64>,
    /// The addresses given since the last call of a letter.
    pub given: Vec<u64>,
    /// Physical handles: number → length.
    pub handles: BTreeMap<u64, u64>,
    /// Mappings: address → length and handle.
    pub mappings: BTreeMap<u64, (u64, u64)>,
    /// The planned failure.
    pub plan: Option<Plan>,
    /// The call that failed since the last call of a letter.
    pub fired: Option<Call>,
    /// Whether a failed call may have left memory with the device.
    pub is_in_doubt: bool,
    /// Whether a call has ever failed by plan.
    pub has_fired: bool,
    /// Whether the call in progress fails by plan.
    fails_now: bool,
    /// Whether the call of a letter wakes memory.
    pub wakes: bool,
    /// The contents kept first.
    first_saved: Option<Saved>,
}

impl Books {
    /// Returns the number of the next free or recording.
    pub fn take_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// Forgets the recording of an event that the core knows to be complete, or that is recorded
    /// again.
    fn forget(&mut self, event: Event) {
        self.recorded.retain(|&(recorded, _)| recorded != event.0);
    }
}

/// The device.
pub struct Device {
    /// The device that serves all calls.
    pub inner: SimulatedDevice,
    capacity: u64,
    defect: Option<Defect>,
    books: SpinMutex<Books>,
}

/// Returns the number of a stream in the account.
fn line(stream: StreamId) -> usize {
    stream.0 as usize
}

impl Device {
    /// Creates a device of `capacity` bytes, with a defect or without.
    #[must_use]
    pub fn new(capacity: u64, defect: Option<Defect>) -> Self {
        Self { inner: SimulatedDevice::new(capacity), capacity, defect, books: SpinMutex::default() }
    }

    /// Returns the account.
    pub fn books(&self) -> SpinMutexGuard<'_, Books> {
        self.books.lock()
    }

    /// Returns the planted defect.
    #[must_use]
    pub fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Chooses the address of new memory: the lowest free address.
    fn place(&self, bytes: u64, is_memory: bool) {
        let mut books = self.books();
        if books.fails_now || is_memory && self.inner.used() + bytes > self.capacity {
            return;
        }
        let length = bytes.next_multiple_of(ALIGNMENT);
        let mut at = FIRST_ADDRESS;
        for (&start, &taken) in &books.taken {
            if start - at >= length {
                break;
            }
            at = start + taken;
        }
        books.taken.insert(at, length);
        books.given.push(at);
        self.inner.script_addresses([at]);
    }

    /// Returns whether a call that undoes earlier calls is left out by a defect.
    fn leaves_out(&self, call: Call) -> bool {
        let books = self.books();
        let Some(failed) = books.fired else { return false };
        match self.defect {
            Some(Defect::HalfGrown) => failed == Call::Create && call == Call::Destroy,
            Some(Defect::KeptAfterFailure) => {
                matches!(failed, Call::Map | Call::SetAccess) && matches!(call, Call::Unmap | Call::Destroy)
            }
            Some(Defect::HalfAwake) => books.wakes && matches!(call, Call::Unmap | Call::Destroy),
            _ => false,
        }
    }

    /// Returns the physical memory under a range, `None` if a part cannot be accessed.
    #[must_use]
    pub fn pieces(&self, at: DevicePtr, bytes: u64) -> Option<Vec<Piece>> {
        claims::pieces(&self.inner, at, bytes)
    }

    /// Queues work of the program on memory.
    ///
    /// # Errors
    /// A sentence with the mistake.
    pub fn launch(&self, stream: StreamId, at: DevicePtr, bytes: u64) -> Result<(), String> {
        let pieces = self.pieces(at, bytes).ok_or("the memory cannot be accessed")?;
        let ordered = self.books().order.launch(line(stream), pieces);
        let told = self.inner.launch(stream, at, bytes);
        match (ordered, told) {
            (true, Ok(())) => Ok(()),
            (true, Err(why)) => Err(format!("only the device finds: {why}")),
            (false, Ok(())) => Err("only the clocks find work with no order between".into()),
            (false, Err(why)) => Err(why.into()),
        }
    }

    /// Orders later work of the program on `stream` behind its present work on `awaited`.
    ///
    /// # Errors
    /// The error of the device, for a stream that captures.
    pub fn order(&self, stream: StreamId, awaited: StreamId) -> DeviceResult<()> {
        self.inner.order(stream, awaited)?;
        let order = &mut self.books().order;
        let place = order.record(line(awaited));
        order.wait(line(stream), place);
        Ok(())
    }

    /// Lets a stream finish its work.
    pub fn complete(&self, stream: StreamId) {
        let order = &mut self.books().order;
        order.complete(order.end(line(stream)));
        self.inner.complete(stream);
    }

    /// Removes the planned failure.
    pub fn clear_failures(&self) {
        self.books().plan = None;
        self.inner.clear_failures();
    }
}

impl Simulated for Device {
    fn simulated(&self) -> &SimulatedDevice {
        &self.inner
    }
}

impl Forwarder for Device {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.inner)
    }

    fn before(&self, _: &'static str, call: Option<Call>) {
        let mut books = self.books();
        books.fails_now = false;
        if call != Some(Call::IsComplete) {
            books.just_recorded = None;
        }
        // The device is not asked which streams are idle, so no such call can fail.
        let Some(call) = call.filter(|&call| call != Call::IsIdle) else { return };
        let Some(plan) = books.plan else { return };
        if plan.is_out_of_memory && !matches!(call, Call::Obtain | Call::Create | Call::Reserve) {
            return;
        }
        if plan.after > 0 {
            books.plan = Some(Plan { after: plan.after - 1, ..plan });
            return;
        }
        books.plan = None;
        (books.fired, books.has_fired, books.fails_now) = (Some(call), true, true);
        books.is_in_doubt |= matches!(call, Call::Release | Call::Unmap | Call::Destroy | Call::Unreserve);
        let kind = if plan.is_out_of_memory { ErrorKind::OutOfMemory } else { ErrorKind::Other };
        failures::fail_after(&self.inner, call, 0, kind);
    }
}

impl ForwardSegments for Device {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.place(bytes, true);
        let base = self.inner.obtain(bytes)?;
        self.books().births.push(base.0);
        Ok(base)
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        // Like the driver, a release waits for the work on the segment.
        let ends: Vec<Place> = {
            let lines = &self.books().order.lines;
            let uses = |(number, line): (usize, &crate::order::Line)| {
                let on = |piece: &Piece| piece.0 == 0 && piece.1.start < base.0 + bytes && base.0 < piece.1.end;
                let last = line.items.iter().rev().find(|item| item.pieces.iter().any(on));
                last.map(|item| (number, item.place))
            };
            lines.iter().enumerate().filter_map(uses).collect()
        };
        self.inner.release(base, bytes)?;
        let mut books = self.books();
        ends.into_iter().for_each(|place| books.order.complete(place));
        books.taken.remove(&base.0);
        books.births.retain(|&birth| birth != base.0);
        Ok(())
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory().map(|_| self as &dyn VirtualMemory)
    }

    fn contents(&self) -> Option<&dyn Contents> {
        self.inner.contents().map(|_| self as &dyn Contents)
    }
}

impl ForwardStreamOrder for Device {
    fn create_event(&self) -> DeviceResult<Event> {
        self.inner.create_event().inspect(|event| _ = self.books().events.insert(event.0, None))
    }

    fn create_order_event(&self) -> DeviceResult<Event> {
        self.inner.create_order_event().inspect(|event| _ = self.books().events.insert(event.0, None))
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.inner.destroy_event(event)?;
        let mut books = self.books();
        books.events.remove(&event.0);
        books.forget(event);
        Ok(())
    }

    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        let is_first = self.books().events.get(&event.0) == Some(&None);
        if self.has(Defect::StaleEvent) && !is_first {
            return Ok(());
        }
        self.inner.record(event, stream)?;
        let mut books = self.books();
        let place = books.order.record(line(stream));
        books.events.insert(event.0, Some(place));
        books.forget(event);
        let turn = books.take_turn();
        books.recorded.push((event.0, turn));
        books.just_recorded = Some(event.0);
        Ok(())
    }

    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        ForwardStreamOrder::record(self, event, stream)
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        let answer = self.inner.is_complete(event)?;
        let mut books = self.books();
        let place = books.events.get(&event.0).copied().flatten();
        let expected = place.is_none_or(|place| books.order.is_complete(place));
        assert_eq!(answer, expected, "the device and the clocks disagree on an event");
        if books.just_recorded.take() == Some(event.0)
            && let Some((stream, _)) = place
        {
            books.questions[stream].was_complete_at_once = Some(answer);
        }
        if answer {
            books.forget(event);
        }
        Ok(answer)
    }

    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        let answer = self.inner.is_idle(stream)?;
        self.books().questions[line(stream)].is_idle = Some(answer);
        Ok(answer)
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        if self.has(Defect::WaitOnStream) {
            return Ok(());
        }
        self.inner.wait(event)?;
        let mut books = self.books();
        if let Some(place) = books.events.get(&event.0).copied().flatten() {
            books.order.complete(place);
        }
        books.forget(event);
        Ok(())
    }

    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        if self.has(Defect::UnorderedMove) {
            return Ok(());
        }
        self.inner.order_behind(stream, event)?;
        let mut books = self.books();
        if let Some(place) = books.events.get(&event.0).copied().flatten() {
            books.order.wait(line(stream), place);
        }
        Ok(())
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        if self.has(Defect::ParkInUse) || self.has(Defect::WaitOnStream) {
            return Ok(());
        }
        self.inner.synchronize(stream)?;
        self.books().order.synchronize(line(stream));
        Ok(())
    }

    fn synchronize_all(&self) -> DeviceResult<()> {
        if self.has(Defect::ParkInUse) || self.has(Defect::WaitOnStream) {
            return Ok(());
        }
        self.inner.synchronize_all()?;
        let mut books = self.books();
        for stream in 0..books.order.lines.len() {
            let end = books.order.end(stream);
            books.order.complete(end);
        }
        Ok(())
    }
}

impl ForwardVirtualMemory for Device {
    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.place(bytes, false);
        self.inner.reserve(bytes)
    }

    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.inner.unreserve(base, bytes)?;
        self.books().taken.remove(&base.0);
        Ok(())
    }

    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let handle = self.inner.create(bytes)?;
        self.books().handles.insert(handle.0, bytes);
        Ok(handle)
    }

    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.inner.map(at, bytes, handle)?;
        self.books().mappings.insert(at.0, (bytes, handle.0));
        Ok(())
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        if self.leaves_out(Call::Destroy) {
            return Ok(());
        }
        self.inner.destroy(handle)?;
        self.books().handles.remove(&handle.0);
        Ok(())
    }

    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        if self.leaves_out(Call::Unmap) {
            return Ok(());
        }
        let unmapped = self.inner.unmap(at, bytes);
        if self.has(Defect::UnmapAssumed) && unmapped.is_err() {
            return Ok(());
        }
        unmapped?;
        self.books().mappings.remove(&at.0);
        Ok(())
    }
}

impl ForwardContents for Device {
    fn save(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Saved> {
        let saved = self.inner.save(at, bytes)?;
        self.books().first_saved.get_or_insert(saved);
        Ok(saved)
    }

    fn restore(&self, saved: Saved, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let first = self.books().first_saved.filter(|_| self.has(Defect::FirstPageRestored));
        self.inner.restore(first.unwrap_or(saved), at, bytes)
    }

    fn forget(&self, saved: Saved) {
        self.books().first_saved.take_if(|first| *first == saved);
        self.inner.forget(saved);
    }
}

impl ForwardHost for Device {}
