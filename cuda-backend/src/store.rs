//! The contents of parked memory, in pinned memory of the host or in files.
//!
//! ```text
//! prepare(40 MiB, …) ─▶ regions: | saved: 20 MiB | saved: 2 MiB | free ………… |  | free ………… |
//!                                     ▲ copies on their own stream
//! ```
//!
//! A call of `prepare` takes *regions* for all contents of the next saves: idle regions of earlier
//! parks, and new memory (region.rs) for the rest; or a new file (`contents_file.rs`). Contents are
//! put next to each other, each in one region. The regions are *under way* until `end_saves`: all
//! saves go to them, and no thread gives them back. Memory without contents is kept for the next
//! park, up to a limit that the program sets, and otherwise given back. A file without contents is
//! closed.
//!
//! The copies to and from memory run on their own non-blocking stream, piece by piece. A single
//! stream reaches the rate of the link in either direction (51 GiB/s on an H100). Copies are
//! numbered in the order of their calls, and memory goes back after the last of its copies. The
//! copies to and from files are jobs for threads (`file_crew.rs`), and a mark covers them in
//! addition to those of the stream (`copy_marks.rs`).
//!
//! No lock is held across a driver call. Any thread may call any method at any time, with one rule
//! for the allocator: from `prepare` to `end_saves`, only one thread saves, for one park.

use crate::contents_file::{ContentsFile, ContentsFolder};
use crate::context::Context;
use crate::copy_marks::CopyMarks;
use crate::driver::result::CuResult;
use crate::file_copies::CrewUse;
use crate::file_jobs::FileWay;
use crate::region::Region;
use cachalot_core::{DevicePtr, DeviceResult, Saved};
use core::num::NonZeroU64;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The alignment of contents in their region, in bytes.
const ALIGNMENT: u64 = 4096;

/// The place of kept contents.
#[derive(Clone, Copy, Debug)]
struct ContentsPlace {
    region: u64,
    offset: u64,
    bytes: u64,
}

impl ContentsPlace {
    /// Returns the place of a part of the contents, or `None` if the contents end before the part
    /// does.
    fn part(&self, from: u64, bytes: u64) -> Option<Self> {
        let is_inside = from.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        is_inside.then(|| Self { region: self.region, offset: self.offset + from, bytes })
    }
}

/// The room of a region. It is shared with the calls and threads that are copying to or from it.
#[derive(Clone, Debug)]
enum Room {
    Memory(Arc<Region>),
    File(Arc<ContentsFile>),
}

impl Room {
    /// Returns the length in bytes.
    fn bytes(&self) -> u64 {
        match self {
            Self::Memory(region) => region.bytes,
            Self::File(file) => file.bytes,
        }
    }

    /// Returns the number of bytes of host memory.
    fn memory_bytes(&self) -> u64 {
        if let Self::Memory(region) = self { region.bytes } else { 0 }
    }

    /// Returns whether no later park can use the region: a file, or memory that is incomplete or in
    /// doubt.
    fn is_useless(&self) -> bool {
        match self {
            Self::Memory(region) => region.is_useless(),
            Self::File(_) => true,
        }
    }
}

/// A region with its contents.
#[derive(Debug)]
struct Entry {
    number: u64,
    room: Room,
    /// The number of bytes at the start that have or had contents.
    used: u64,
    /// The number of contents that are kept here, or are about to be.
    kept: u32,
    /// The number of the last copy to or from the region's memory.
    copied: u64,
}

/// The regions and contents of a store.
#[derive(Debug, Default)]
struct State {
    regions: Vec<Entry>,
    /// The numbers of the regions under way. Each save goes to the first that has room.
    under_way: Vec<u64>,
    /// The use of the threads by the park under way, if it goes to a file.
    crew: Option<CrewUse>,
    places: HashMap<u64, ContentsPlace>,
    /// The latest number that was given to a region or to contents.
    numbers: u64,
    /// The bytes of regions without contents that are kept for the next park.
    retained: u64,
    /// The folder of the files for later parks. `None` means that contents go to memory.
    folder: Option<Arc<ContentsFolder>>,
}

/// The contents of a device's parked memory.
#[derive(Debug, Default)]
pub(crate) struct Store {
    state: Mutex<State>,
    pub(crate) copies: CopyMarks,
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        self.regions.iter_mut().find(|entry| entry.number == number)
    }

    /// Returns whether the region has no contents and is not under way.
    fn is_idle(&self, entry: &Entry) -> bool {
        entry.kept == 0 && !self.under_way.contains(&entry.number)
    }

    /// Returns the bytes of idle regions.
    fn idle_bytes(&self) -> u64 {
        self.regions.iter().filter(|entry| self.is_idle(entry)).map(|entry| entry.room.memory_bytes()).sum()
    }

    /// Takes out an idle region that is useless, or any idle one if they have more bytes than the
    /// limit.
    fn take_excess(&mut self) -> Option<Entry> {
        let excess = self.idle_bytes() > self.retained;
        let goes = |entry: &Entry| self.is_idle(entry) && (excess || entry.room.is_useless());
        let found = self.regions.iter().position(goes)?;
        Some(self.regions.remove(found))
    }

    /// Takes idle regions for saves of `bytes` bytes together and at most `largest` each: the
    /// smallest region with room for all, or as many as are needed. Returns the number of bytes for
    /// which another region is needed.
    fn take_idle(&mut self, bytes: u64, largest: u64) -> u64 {
        let mut idle: Vec<(u64, u64)> = Vec::new();
        for entry in self.regions.iter().filter(|entry| self.is_idle(entry) && !entry.room.is_useless()) {
            idle.push((entry.room.bytes(), entry.number));
        }
        idle.sort_unstable();
        // A much longer region is kept for a longer park. A process parks the memory that it serves
        // and the memory that its program maps one after the other. If the few bytes of one took
        // the region, the many bytes of the other would have to be pinned anew.
        idle.retain(|(room, _)| room / 2 <= bytes);
        if let Some(&(_, number)) = idle.iter().find(|(room, _)| *room >= bytes) {
            self.take_again(number);
            return 0;
        }
        let mut rest = bytes;
        for (room, number) in idle.into_iter().rev() {
            // A region is full when the largest contents do not fit. The lengths of pages are
            // multiples of 2 MiB, so there is no gap between their contents.
            let sure = (room + ALIGNMENT).saturating_sub(largest);
            if rest > 0 && sure > 0 {
                self.take_again(number);
                rest = rest.saturating_sub(sure);
            }
        }
        rest
    }

    /// Takes out an idle region that is too short for contents of `bytes` bytes.
    fn take_short(&mut self, bytes: u64) -> Option<Entry> {
        let is_short = |entry: &Entry| self.is_idle(entry) && entry.room.bytes() < bytes;
        let found = self.regions.iter().position(is_short)?;
        Some(self.regions.remove(found))
    }

    /// Puts an idle region under way.
    fn take_again(&mut self, number: u64) {
        if let Some(entry) = self.entry(number) {
            entry.used = 0;
            self.under_way.push(number);
        }
    }

    /// Takes a place of `bytes` bytes in a region under way. Returns `None` if none has the room.
    fn take_place(&mut self, bytes: u64) -> Option<(ContentsPlace, Room)> {
        let Self { regions, under_way, .. } = self;
        let mut entries =
            under_way.iter().filter_map(|&number| regions.iter().position(|entry| entry.number == number));
        let (found, end) = entries.find_map(|at| {
            let end = regions[at].used.checked_add(bytes)?;
            (end <= regions[at].room.bytes()).then_some((at, end))
        })?;
        let entry = &mut regions[found];
        let place = ContentsPlace { region: entry.number, offset: entry.used, bytes };
        entry.used = end.next_multiple_of(ALIGNMENT).min(entry.room.bytes());
        entry.kept += 1;
        Some((place, entry.room.clone()))
    }

    /// Adds a new region, and puts it under way.
    fn put_under_way(&mut self, room: Room, crew: Option<CrewUse>) {
        let number = self.number();
        self.regions.push(Entry { number, room, used: 0, kept: 0, copied: 0 });
        self.under_way.push(number);
        self.crew = crew;
    }

    /// Ends the saves to the regions under way.
    fn end_saves(&mut self) {
        self.under_way.clear();
        self.crew = None;
    }

    /// Gives the contents at a place a name.
    fn name(&mut self, place: ContentsPlace) -> DeviceResult<Saved> {
        let name = self.number();
        self.places.insert(name, place);
        NonZeroU64::new(name).map(Saved).ok_or(CuResult::UNKNOWN.error())
    }

    /// Notes the number of the latest copy to or from the memory of a region.
    fn note_copies(&mut self, region: u64, number: u64) {
        if let Some(entry) = self.entry(region) {
            entry.copied = entry.copied.max(number);
        }
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Poison is ignored, because each change of the state is complete before the next call that
        // may panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how many bytes of pinned host memory are kept for the next park when no contents of
    /// parked memory are left. The initial value is 0. Gives excess memory back.
    ///
    /// # Errors
    /// The first error of the driver or the system. Memory that could not be given back is lost.
    pub(crate) fn retain(&self, context: &Context, bytes: u64) -> DeviceResult<()> {
        self.lock().retained = bytes;
        self.give_excess_back(context)
    }

    /// Returns the bytes of pinned host memory for contents: all of them, and those that have no
    /// contents at present.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.regions.iter().map(|entry| entry.room.memory_bytes()).sum(), state.idle_bytes())
    }

    /// Lets every region end without any memory, as if the system had refused it.
    #[cfg(test)]
    pub(crate) fn lose_memory(&self) {
        self.lock().regions.iter().for_each(|entry| {
            if let Room::Memory(region) = &entry.room {
                region.lose_memory();
            }
        });
    }

    /// Calls `act` with the folder of the files.
    #[cfg(test)]
    pub(crate) fn with_folder<T>(&self, act: impl FnOnce(&ContentsFolder) -> T) -> T {
        let folder = self.lock().folder.clone().expect("a folder");
        act(&folder)
    }

    /// Keeps the contents of later parks in files of a folder, or in memory if it is `None`.
    pub(crate) fn keep_in(&self, folder: Option<PathBuf>) {
        self.lock().folder = folder.map(|path| Arc::new(ContentsFolder::new(path)));
    }

    /// Returns whether later saves go to files.
    pub(crate) fn keeps_in_files(&self) -> bool {
        self.lock().folder.is_some()
    }

    /// Returns the last error of a file since the last call or the last park.
    pub(crate) fn take_file_error(&self) -> Option<io::Error> {
        self.copies.files.jobs.take_error()
    }

    /// Gives back the idle regions beyond the limit, and the useless ones.
    fn give_excess_back(&self, context: &Context) -> DeviceResult<()> {
        self.give_regions_back(context, State::take_excess)
    }

    /// Gives back the regions that `take` takes out.
    fn give_regions_back(&self, context: &Context, take: impl Fn(&mut State) -> Option<Entry>) -> DeviceResult<()> {
        let mut result = Ok(());
        loop {
            // The lock ends with this statement, because giving a region back takes up to 0.1 s for
            // each GiB.
            let taken = take(&mut self.lock());
            let Some(region) = taken else { return result };
            if let Err(error) = self.copies.wait_for_copy(context, region.copied)
                && context.health().is_ok()
            {
                // A copy may be in progress. A later call tries again.
                self.lock().regions.push(region);
                return result.and(Err(error));
            }
            result = result.and(give_back(context, region));
        }
    }

    /// Waits for the copies, destroys their stream and events, and gives all host memory back, when
    /// the device is closed. No other thread may be inside a call of the device.
    pub(crate) fn close(&self, context: &Context) -> DeviceResult<()> {
        let mut result = self.copies.close(context);
        let state = core::mem::take(&mut *self.lock());
        for entry in state.regions {
            result = result.and(give_back(context, entry));
        }
        result
    }

    /// Takes idle regions for `bytes` bytes in saves of at most `largest`, and starts a new region
    /// for the rest. The saves wait for the new memory piece by piece. It is on the NUMA node
    /// `node`, if this is given. If contents go to files, takes a new file with its room instead.
    /// The regions are under way until [`end_saves`](Self::end_saves).
    pub(crate) fn prepare(
        &self,
        context: &Arc<Context>,
        bytes: u64,
        largest: u64,
        node: Option<u32>,
    ) -> DeviceResult<()> {
        let folder = {
            let mut state = self.lock();
            state.end_saves();
            state.folder.clone()
        };
        if let Some(folder) = folder {
            return self.prepare_file(context, &folder, bytes, node);
        }
        let rest = self.lock().take_idle(bytes, largest);
        if rest == 0 {
            return Ok(());
        }
        // Idle regions that are too short would pile up from park to park. Memory that cannot be
        // given back is lost.
        let _ = self.give_regions_back(context, |state| state.take_short(largest));
        let region = Region::new(rest, node).inspect_err(|_| self.lock().end_saves())?;
        self.lock().put_under_way(Room::Memory(Arc::new(region)), None);
        Ok(())
    }

    /// Takes a new file in the folder.
    fn prepare_file(
        &self,
        context: &Arc<Context>,
        folder: &Arc<ContentsFolder>,
        bytes: u64,
        node: Option<u32>,
    ) -> DeviceResult<()> {
        // An error of an earlier park says nothing about this one.
        let _earlier = self.copies.files.jobs.take_error();
        self.copies.files.set_node(node);
        let crew = self.copies.files.hire(context, bytes)?;
        let made = ContentsFile::new(folder, bytes).map_err(|error| self.copies.files.jobs.note(error));
        match made {
            Ok(file) => {
                self.lock().put_under_way(Room::File(Arc::new(file)), Some(crew));
                Ok(())
            }
            Err(error) => {
                drop(crew);
                self.copies.files.rest(context);
                Err(error)
            }
        }
    }

    /// Ends the saves to the regions under way. Gives back regions without contents that exceed the
    /// limit.
    pub(crate) fn end_saves(&self, context: &Context) {
        self.lock().end_saves();
        // Memory that could not be given back is lost, which no caller could change.
        let _ = self.give_excess_back(context);
        self.copies.files.rest(context);
    }

    pub(crate) fn save(&self, context: &Context, at: DevicePtr, bytes: u64) -> DeviceResult<Saved> {
        let stream = self.copies.stream(context)?;
        let taken = self.lock().take_place(bytes);
        let (place, room) = taken.ok_or(CuResult::OUT_OF_MEMORY.error())?;
        let region = match room {
            Room::Memory(region) => region,
            Room::File(file) => {
                self.copies.files.jobs.begin(FileWay::ToFile, &file, place.offset, at, bytes);
                return self.lock().name(place);
            }
        };
        let copied = region.each_part(context, place.offset, bytes, |to, from, part| {
            context.call(|driver| {
                // SAFETY: the part is in the region, outside all other contents, and stays pinned
                // while contents are kept there or copies are in progress.
                unsafe { driver.memcpy_dtoh_async(to, at.0 + from, part as usize, stream) }
            })
        });
        let number = self.copies.number();
        let mut state = self.lock();
        state.note_copies(place.region, number);
        if let Err(error) = copied {
            if let Some(entry) = state.entry(place.region) {
                // Copies of earlier parts may be in progress. A later save to the place comes after
                // them.
                entry.used = place.offset;
                entry.kept -= 1;
            }
            return Err(error);
        }
        state.name(place)
    }

    /// Starts to copy the part of contents that starts at `from` and has `bytes` bytes.
    pub(crate) fn restore(
        &self,
        context: &Arc<Context>,
        saved: Saved,
        from: u64,
        at: DevicePtr,
        bytes: u64,
    ) -> DeviceResult<()> {
        let stream = self.copies.stream(context)?;
        let (place, room) = {
            let mut state = self.lock();
            let place = state.places.get(&saved.0.get()).and_then(|place| place.part(from, bytes));
            let place = place.ok_or(CuResult::INVALID_VALUE.error())?;
            let entry = state.entry(place.region).ok_or(CuResult::INVALID_VALUE.error())?;
            (place, entry.room.clone())
        };
        let region = match room {
            Room::Memory(region) => region,
            Room::File(file) => {
                let _crew = self.copies.files.hire(context, file.bytes)?;
                self.copies.files.jobs.begin(FileWay::ToDevice, &file, place.offset, at, bytes);
                return Ok(());
            }
        };
        let copied = region.each_part(context, place.offset, bytes, |from, to, part| {
            context.call(|driver| {
                // SAFETY: the contents are in a region, which lives until they are forgotten.
                unsafe { driver.memcpy_htod_async(at.0 + to, from, part as usize, stream) }
            })
        });
        let number = self.copies.number();
        self.lock().note_copies(place.region, number);
        copied
    }

    pub(crate) fn zero(&self, context: &Context, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let stream = self.copies.stream(context)?;
        context.call(|driver| {
            // SAFETY: takes no host pointers; the allocator has mapped the range, and hands it out
            // after the fill only.
            unsafe { driver.memset_d8_async(at.0, 0, bytes as usize, stream) }
        })
    }

    pub(crate) fn forget(&self, context: &Context, saved: Saved) {
        {
            let mut state = self.lock();
            let Some(place) = state.places.remove(&saved.0.get()) else { return };
            if let Some(entry) = state.entry(place.region) {
                entry.kept -= 1;
            }
        }
        // Memory that could not be given back is lost, which no caller could change.
        let _ = self.give_excess_back(context);
    }
}

/// Gives back a region that was taken out of the state. No copy uses its memory.
fn give_back(context: &Context, entry: Entry) -> DeviceResult<()> {
    match entry.room {
        // No call copies to or from the region, because it would keep the contents.
        Room::Memory(region) => Arc::into_inner(region).map_or(Ok(()), |region| region.give_back(context)),
        // The file is closed by the last job that has it.
        Room::File(_) => Ok(()),
    }
}
