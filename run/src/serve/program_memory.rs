//! Memory that the program creates and maps by itself (`cuMemCreate`, `cuMemMap`), in a process
//! whose memory can be parked.
//!
//! ```text
//! token ─▶ physical memory ─▶ handles of the driver    while awake: one for each piece
//!   ▲                      └▶ contents on the host     while parked
//! address ─ mapping
//! ```
//!
//! The program holds a *token* in place of the driver's handle: a park releases the physical
//! memory, and the wake creates the memory anew, with new handles. The driver's handles are
//! released when the program has released the token and unmapped every address, so a park finds
//! handles for all memory.
//!
//! The records call no driver, and the lock is never held across a call.

use crate::serve::program_pieces::{Piece, Pieces};
use crate::serve::program_recipe::Recipe;
use crate::serve::served::Served;
use cachalot_core::Saved;
use cachalot_cuda::driver::types::{CuDevice, CuDevicePtr, CuMemAccessDesc, CuMemAccessFlags, CuMemHandle};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bits of every token: neither an address of the host nor a small number, as handles of the
/// driver are.
const TOKENS: u64 = 0xa000_0000_0000_0000;

/// The memory that the program has created and mapped. All methods may be called from every thread.
#[derive(Default)]
pub(super) struct ProgramMemory(Mutex<ProgramRecords>);

#[derive(Default)]
struct ProgramRecords {
    /// The number of the last token.
    made: u64,
    physical: BTreeMap<u64, ProgramPhysical>,
    mappings: BTreeMap<CuDevicePtr, ProgramMapping>,
}

/// Physical memory of the program.
#[derive(Clone)]
pub(super) struct ProgramPhysical {
    pub(super) recipe: Recipe,
    /// The driver's handles. None while parked.
    pub(super) pieces: Pieces,
    /// The contents on the host, while parked.
    pub(super) contents: Option<ProgramContents>,
    /// Addresses of the library's own, for copies of memory that the program cannot copy at
    /// present.
    pub(super) window: Option<CuDevicePtr>,
    /// How often the program holds the token.
    held: u64,
    /// The program's mappings, and calls that are about to map.
    uses: u64,
    /// Whether the memory is the host's, in the place of the device's. No park moves such memory.
    is_at_host: bool,
    /// Whether other processes or devices may use the memory, which no park can tell.
    is_shared: bool,
    /// Whether each wake creates the memory whole, for calls that take a single handle.
    is_whole: bool,
}

/// The contents of parked memory, and the context that saved them.
#[derive(Clone)]
pub(super) struct ProgramContents {
    pub(super) served: Arc<Served>,
    pub(super) saved: Saved,
}

/// Addresses with physical memory.
#[derive(Clone)]
pub(super) struct ProgramMapping {
    pub(super) token: u64,
    pub(super) bytes: u64,
    pub(super) offset: u64,
    /// The access of each device that has any.
    pub(super) access: Vec<CuMemAccessDesc>,
    /// The bytes from the start that the driver has mapped: none while parked, and otherwise all,
    /// unless a wake has failed.
    pub(super) mapped: u64,
}

/// The part of a mapping that is on a piece of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MappedPart {
    pub(super) address: CuDevicePtr,
    pub(super) bytes: u64,
    /// The offset in the piece.
    pub(super) offset: u64,
    /// Bytes from the start of the mapping to the end of the part.
    pub(super) end: u64,
}

/// Physical memory with every mapping, as a park or a wake sees them.
pub(super) struct ProgramItem {
    pub(super) token: u64,
    pub(super) physical: ProgramPhysical,
    pub(super) mappings: Vec<(CuDevicePtr, ProgramMapping)>,
}

/// The end of physical memory, to be released.
pub(super) type Ended = (u64, ProgramPhysical);

/// The answer to a release of a token.
pub(super) enum Released {
    /// There is no such token.
    Unknown,
    /// The memory lives on.
    Lives,
    /// No token and no mapping is left.
    Last(Ended),
}

/// The parked mappings in a range of addresses.
pub(super) enum ParkedRange {
    /// No parked mapping.
    Absent,
    /// Parked mappings from end to end, taken out, and the memory that has ended with them.
    Whole(Vec<Ended>),
    /// Parked mappings next to others, or a part of a parked mapping.
    Mixed,
}

/// Sums of the program's physical memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct ProgramSums {
    /// On a device, and a park would move the memory.
    pub(super) awake: u64,
    /// On the host.
    pub(super) parked: u64,
    /// On a device for good: shared.
    pub(super) shared: u64,
}

impl ProgramItem {
    /// Returns an address of the program's at which the memory's own device can read and write
    /// everything.
    pub(super) fn copy_address(&self) -> Option<CuDevicePtr> {
        let recipe = &self.physical.recipe;
        let own = self.mappings.iter().filter(|(address, _)| self.physical.window != Some(*address));
        let is_open = |mapping: &ProgramMapping| mapping.access.iter().any(|access| *access == recipe.own_access());
        own.clone().find(|(_, mapping)| mapping.is_of_all(recipe) && is_open(mapping)).map(|&(address, _)| address)
    }
}

impl ProgramPhysical {
    /// Returns whether a park moves the memory.
    fn moves(&self) -> bool {
        !self.is_shared && !self.is_at_host
    }
}

impl ProgramMapping {
    /// Returns whether the driver has the whole mapping.
    pub(super) const fn is_mapped(&self) -> bool {
        self.mapped == self.bytes
    }

    /// Returns the part of the mapping at `address` that is on a piece.
    pub(super) fn part_on(&self, address: CuDevicePtr, piece: &Piece) -> Option<MappedPart> {
        let begin = self.offset.max(piece.offset);
        let end = (self.offset + self.bytes).min(piece.end());
        (begin < end).then(|| MappedPart {
            address: address + (begin - self.offset),
            bytes: end - begin,
            offset: begin - piece.offset,
            end: end - self.offset,
        })
    }

    /// Returns whether all of the memory is mapped from its start.
    const fn is_of_all(&self, recipe: &Recipe) -> bool {
        self.offset == 0 && self.bytes == recipe.bytes
    }

    /// Returns the address after the mapping.
    fn end(&self, address: CuDevicePtr) -> CuDevicePtr {
        address.saturating_add(self.bytes)
    }
}

impl ProgramMemory {
    fn lock(&self) -> MutexGuard<'_, ProgramRecords> {
        // Each change of the records is complete before the next call that may panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a handle of the program's is a token.
    pub(super) const fn is_token(handle: CuMemHandle) -> bool {
        handle.0 & TOKENS == TOKENS
    }

    /// Returns a new token.
    pub(super) fn new_token(&self) -> u64 {
        let mut records = self.lock();
        records.made += 1;
        TOKENS | records.made
    }

    /// Adds physical memory, which the program holds once. `is_at_host`: it is the host's.
    pub(super) fn add(&self, token: u64, recipe: Recipe, handle: CuMemHandle, is_at_host: bool) {
        let physical = ProgramPhysical {
            recipe,
            pieces: Pieces::whole(recipe.bytes, handle),
            contents: None,
            window: None,
            held: 1,
            uses: 0,
            is_at_host,
            is_shared: false,
            is_whole: false,
        };
        self.lock().physical.insert(token, physical);
    }

    /// Returns how the memory of a held token is created.
    pub(super) fn recipe(&self, token: u64) -> Option<Recipe> {
        self.lock().held(token).map(|physical| physical.recipe)
    }

    /// Returns the driver's handle of a held token whose memory is awake and whole.
    pub(super) fn handle(&self, token: u64) -> Option<CuMemHandle> {
        self.lock().held(token).and_then(|physical| physical.pieces.single())
    }

    /// Returns the driver's handles of a held token for a call that maps. The memory lives until
    /// [`mapped`](Self::mapped) or [`end_use`](Self::end_use).
    pub(super) fn begin_use(&self, token: u64) -> Option<Pieces> {
        let mut records = self.lock();
        let physical = records.held(token)?;
        physical.uses += 1;
        Some(physical.pieces.clone())
    }

    /// Notes a mapping, started by [`begin_use`](Self::begin_use).
    pub(super) fn mapped(&self, address: CuDevicePtr, token: u64, bytes: u64, offset: u64) {
        let mapping = ProgramMapping { token, bytes, offset, access: Vec::new(), mapped: bytes };
        self.lock().mappings.insert(address, mapping);
    }

    /// Ends a use. Returns memory that has ended.
    pub(super) fn end_use(&self, token: u64) -> Option<Ended> {
        self.lock().end_use(token)
    }

    /// Gives a token back.
    pub(super) fn release(&self, token: u64) -> Released {
        let mut records = self.lock();
        let Some(physical) = records.held(token) else { return Released::Unknown };
        physical.held -= 1;
        records.take_ended(token).map_or(Released::Lives, Released::Last)
    }

    /// Puts memory back whose release has failed. The program holds a token again if `held`.
    pub(super) fn put_back(&self, (token, mut physical): Ended, held: bool) {
        physical.held += u64::from(held);
        self.lock().physical.insert(token, physical);
    }

    /// Returns the token of the memory mapped at an address, which the program holds once more.
    pub(super) fn retain(&self, address: CuDevicePtr) -> Option<u64> {
        let mut records = self.lock();
        let token = records.mapping_around(address)?.1.token;
        records.physical.get_mut(&token)?.held += 1;
        Some(token)
    }

    /// Takes out the mappings in a range, ahead of a call to unmap the range.
    pub(super) fn take_mappings(&self, address: CuDevicePtr, bytes: u64) -> Vec<(CuDevicePtr, ProgramMapping)> {
        let mut records = self.lock();
        let end = address.saturating_add(bytes);
        let inside = records.mappings.range(address..end.max(address)).filter(|(at, mapping)| mapping.end(**at) <= end);
        let inside: Vec<CuDevicePtr> = inside.map(|(&at, _)| at).collect();
        inside.into_iter().filter_map(|at| records.mappings.remove_entry(&at)).collect()
    }

    /// Puts mappings back that the driver has not unmapped.
    pub(super) fn put_mappings_back(&self, mappings: Vec<(CuDevicePtr, ProgramMapping)>) {
        let mut records = self.lock();
        for (address, mapping) in mappings {
            records.mappings.entry(address).or_insert(mapping);
        }
    }

    /// Takes parked mappings out that make up a range.
    pub(super) fn take_parked(&self, address: CuDevicePtr, bytes: u64) -> ParkedRange {
        let mut records = self.lock();
        let end = address.saturating_add(bytes);
        let found = records.overlapping(address, end);
        if found.iter().all(|at| records.mappings[at].is_mapped()) {
            return ParkedRange::Absent;
        }
        let mut next = address;
        for at in &found {
            let mapping = &records.mappings[at];
            if *at != next || mapping.mapped > 0 {
                return ParkedRange::Mixed;
            }
            next = mapping.end(*at);
        }
        if next != end {
            return ParkedRange::Mixed;
        }
        let tokens: Vec<u64> =
            found.iter().filter_map(|at| records.mappings.remove(at)).map(|mapping| mapping.token).collect();
        ParkedRange::Whole(tokens.into_iter().filter_map(|token| records.end_use(token)).collect())
    }

    /// Returns whether a range has a parked mapping.
    pub(super) fn has_parked(&self, address: CuDevicePtr, bytes: u64) -> bool {
        let records = self.lock();
        let found = records.overlapping(address, address.saturating_add(bytes));
        found.iter().any(|at| !records.mappings[at].is_mapped())
    }

    /// Returns the first address and the bytes of the mapping around an address that some device
    /// may use, as the driver answers for memory that is awake and whole.
    pub(super) fn open_mapping_around(&self, address: CuDevicePtr) -> Option<(CuDevicePtr, u64)> {
        let records = self.lock();
        let (at, mapping) = records.mapping_around(address)?;
        (!mapping.access.is_empty()).then_some((at, mapping.bytes))
    }

    /// Returns the first address and the bytes of the mapping around an address of memory in
    /// pieces.
    pub(super) fn divided_mapping_around(&self, address: CuDevicePtr) -> Option<(CuDevicePtr, u64)> {
        let records = self.lock();
        let (at, mapping) = records.mapping_around(address)?;
        records.physical.get(&mapping.token)?.pieces.is_divided().then_some((at, mapping.bytes))
    }

    /// Returns the tokens of the memory mapped in a range.
    pub(super) fn tokens_in(&self, address: CuDevicePtr, bytes: u64) -> Vec<u64> {
        let records = self.lock();
        let found = records.overlapping(address, address.saturating_add(bytes));
        found.iter().map(|at| records.mappings[at].token).collect()
    }

    /// Returns the tokens of the memory with mappings that are only partly in a range.
    pub(super) fn tokens_cut_by(&self, address: CuDevicePtr, bytes: u64) -> Vec<u64> {
        let records = self.lock();
        let end = address.saturating_add(bytes);
        let is_cut = |at: &CuDevicePtr| *at < address || records.mappings[at].end(*at) > end;
        let found = records.overlapping(address, end).into_iter().filter(is_cut);
        found.map(|at| records.mappings[&at].token).collect()
    }

    /// Has every later wake create memory whole.
    pub(super) fn keep_whole(&self, tokens: &[u64]) {
        let mut records = self.lock();
        for token in tokens {
            if let Some(physical) = records.physical.get_mut(token) {
                physical.is_whole = true;
            }
        }
    }

    /// Returns whether any of the memory is in pieces.
    pub(super) fn is_any_divided(&self, tokens: &[u64]) -> bool {
        let records = self.lock();
        let mut found = tokens.iter().filter_map(|token| records.physical.get(token));
        found.any(|physical| physical.pieces.is_divided())
    }

    /// Notes the access to a range that the driver has given. Memory with different access to its
    /// parts counts as shared.
    pub(super) fn set_access(&self, address: CuDevicePtr, bytes: u64, given: &[CuMemAccessDesc]) {
        let mut records = self.lock();
        let end = address.saturating_add(bytes);
        for at in records.overlapping(address, end) {
            let Some(mapping) = records.mappings.get_mut(&at) else { continue };
            let (token, is_whole) = (mapping.token, address <= at && mapping.end(at) <= end);
            if is_whole {
                for new in given {
                    mapping.access.retain(|known| known.location != new.location);
                    if new.flags != CuMemAccessFlags::NONE {
                        mapping.access.push(*new);
                    }
                }
            } else {
                records.share(token);
            }
        }
    }

    /// Notes that the memory of a token may be used without a call of the program.
    pub(super) fn share(&self, token: u64) {
        self.lock().share(token);
    }

    /// Notes that the memory mapped in a range may be used without a call of the program.
    pub(super) fn share_range(&self, address: CuDevicePtr, bytes: u64) {
        let mut records = self.lock();
        for at in records.overlapping(address, address.saturating_add(bytes)) {
            let token = records.mappings[&at].token;
            records.share(token);
        }
    }

    /// Returns the memory that a park moves, or that is parked.
    pub(super) fn items(&self, wanted: impl Fn(&ProgramPhysical) -> bool) -> Vec<ProgramItem> {
        let records = self.lock();
        let mut items: Vec<ProgramItem> = Vec::new();
        let mut by_token: BTreeMap<u64, usize> = BTreeMap::new();
        for (&token, physical) in records.physical.iter().filter(|(_, physical)| physical.moves() && wanted(physical)) {
            by_token.insert(token, items.len());
            items.push(ProgramItem { token, physical: physical.clone(), mappings: Vec::new() });
        }
        for (&address, mapping) in &records.mappings {
            if let Some(&at) = by_token.get(&mapping.token) {
                items[at].mappings.push((address, mapping.clone()));
            }
        }
        items
    }

    /// Returns the pieces in which a wake creates memory, of `each` bytes unless the memory is to
    /// be whole, or those of an earlier wake that the driver has kept.
    pub(super) fn divide(&self, token: u64, each: u64) -> Vec<Piece> {
        let mut records = self.lock();
        let Some(physical) = records.physical.get_mut(&token) else { return Vec::new() };
        physical.pieces.divide(if physical.is_whole { 0 } else { each });
        physical.pieces.all()
    }

    /// Notes the driver's handle of the first piece that was not there.
    pub(super) fn add_piece(&self, token: u64, handle: CuMemHandle) {
        if let Some(physical) = self.lock().physical.get_mut(&token) {
            physical.pieces.push(handle);
        }
    }

    /// Notes that the driver has the last piece back that was there.
    pub(super) fn take_piece(&self, token: u64) {
        if let Some(physical) = self.lock().physical.get_mut(&token) {
            physical.pieces.pop();
        }
    }

    /// Notes the contents of memory on the host, or that there are none any longer.
    pub(super) fn set_contents(&self, token: u64, contents: Option<ProgramContents>) {
        if let Some(physical) = self.lock().physical.get_mut(&token) {
            physical.contents = contents;
        }
    }

    /// Notes how many bytes of a mapping the driver has.
    pub(super) fn set_mapped(&self, address: CuDevicePtr, mapped: u64) {
        if let Some(mapping) = self.lock().mappings.get_mut(&address) {
            mapping.mapped = mapped;
        }
    }

    /// Notes addresses of the library's own for copies, and the mapping that is to come.
    pub(super) fn open_window(&self, token: u64, address: CuDevicePtr, mapping: ProgramMapping) {
        let mut records = self.lock();
        if let Some(physical) = records.physical.get_mut(&token) {
            physical.window = Some(address);
            records.mappings.insert(address, mapping);
        }
    }

    /// Takes the mapping of a window out. Returns the bytes of it that the driver has mapped.
    pub(super) fn close_window(&self, address: CuDevicePtr) -> u64 {
        self.lock().mappings.remove(&address).map_or(0, |mapping| mapping.mapped)
    }

    /// Returns whether contents are with the allocator of a context.
    pub(super) fn has_contents_in(&self, is_it: impl Fn(&Served) -> bool) -> bool {
        let records = self.lock();
        records.physical.values().filter_map(|physical| physical.contents.as_ref()).any(|kept| is_it(&kept.served))
    }

    /// Returns the sums of the memory on a device.
    pub(super) fn sums(&self, device: impl Fn(CuDevice) -> bool) -> ProgramSums {
        let mut sums = ProgramSums::default();
        let on_device = |physical: &&ProgramPhysical| !physical.is_at_host && device(physical.recipe.device());
        for physical in self.lock().physical.values().filter(on_device) {
            let sum = match (physical.pieces.is_parked(), physical.is_shared) {
                (true, _) => &mut sums.parked,
                (false, true) => &mut sums.shared,
                (false, false) => &mut sums.awake,
            };
            *sum += physical.recipe.bytes;
        }
        sums
    }

    /// Returns the devices with parked memory, and the bytes of each memory.
    pub(super) fn parked(&self) -> Vec<(CuDevice, u64)> {
        let records = self.lock();
        let parked = records.physical.values().filter(|physical| physical.pieces.is_parked());
        parked.map(|physical| (physical.recipe.device(), physical.recipe.bytes)).collect()
    }
}

impl ProgramRecords {
    /// Returns the memory of a token that the program holds.
    fn held(&mut self, token: u64) -> Option<&mut ProgramPhysical> {
        self.physical.get_mut(&token).filter(|physical| physical.held > 0)
    }

    /// Returns the mapping around an address.
    fn mapping_around(&self, address: CuDevicePtr) -> Option<(CuDevicePtr, &ProgramMapping)> {
        let (&at, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end(at)).then_some((at, mapping))
    }

    /// Returns the mappings with an address in a range.
    fn overlapping(&self, address: CuDevicePtr, end: CuDevicePtr) -> Vec<CuDevicePtr> {
        let before = self.mappings.range(..address).next_back().filter(|(at, mapping)| mapping.end(**at) > address);
        let inside = self.mappings.range(address..end.max(address));
        before.into_iter().chain(inside).map(|(&at, _)| at).collect()
    }

    fn share(&mut self, token: u64) {
        if let Some(physical) = self.physical.get_mut(&token) {
            physical.is_shared = true;
        }
    }

    /// Ends a use. Returns memory that has ended.
    fn end_use(&mut self, token: u64) -> Option<Ended> {
        self.physical.get_mut(&token)?.uses -= 1;
        self.take_ended(token)
    }

    /// Takes memory out without a token of the program's and without a use.
    fn take_ended(&mut self, token: u64) -> Option<Ended> {
        let physical = self.physical.get(&token)?;
        let is_over = physical.held == 0 && physical.uses == 0;
        is_over.then(|| self.physical.remove(&token).map(|physical| (token, physical)))?
    }
}

#[cfg(test)]
mod tests {
    use super::{ParkedRange, Piece, ProgramMapping, ProgramMemory, ProgramSums, Recipe, Released};
    use cachalot_cuda::driver::types::{
        CuMemAccessDesc, CuMemAccessFlags, CuMemAllocationProp, CuMemHandle, CuMemLocation, CuMemLocationType,
    };

    const PAGE: u64 = 2 << 20;

    fn recipe(pages: u64) -> Recipe {
        Recipe::of(pages * PAGE, &CuMemAllocationProp::on_device(0, false, true), 0).expect("memory of a device")
    }

    fn access(id: i32, flags: CuMemAccessFlags) -> CuMemAccessDesc {
        CuMemAccessDesc { location: CuMemLocation { kind: CuMemLocationType::DEVICE, id }, flags }
    }

    /// Adds memory of some pages, mapped at page numbers.
    fn mapped(memory: &ProgramMemory, pages: u64, at: &[u64]) -> u64 {
        let token = memory.new_token();
        memory.add(token, recipe(pages), CuMemHandle(token & 0xff), false);
        for page in at {
            let pieces = memory.begin_use(token).expect("held");
            assert_eq!(pieces.single(), Some(CuMemHandle(token & 0xff)));
            memory.mapped(page * PAGE, token, pages * PAGE, 0);
        }
        token
    }

    #[test]
    fn memory_lives_until_the_last_token_and_the_last_mapping_are_gone() {
        let memory = ProgramMemory::default();
        let token = mapped(&memory, 1, &[1, 2]);
        assert!(ProgramMemory::is_token(CuMemHandle(token)) && !ProgramMemory::is_token(CuMemHandle(1 << 46)));
        assert_eq!(memory.retain(2 * PAGE + 5), Some(token));
        assert_eq!(memory.retain(3 * PAGE), None);
        assert!(matches!(memory.release(token), Released::Lives));
        assert!(matches!(memory.release(token), Released::Lives));
        // A released token maps no more.
        assert!(matches!(memory.release(token), Released::Unknown) && memory.begin_use(token).is_none());
        assert_eq!(memory.take_mappings(PAGE, 2 * PAGE).len(), 2);
        assert!(memory.end_use(token).is_none());
        assert!(memory.end_use(token).is_some_and(|(of, _)| of == token));
        assert!(memory.end_use(token).is_none());
    }

    #[test]
    fn a_range_of_parked_mappings_is_unmapped_without_the_driver_if_whole() {
        let memory = ProgramMemory::default();
        let tokens = [mapped(&memory, 1, &[1]), mapped(&memory, 2, &[2]), mapped(&memory, 1, &[4])];
        let is = |range: ParkedRange| match range {
            ParkedRange::Absent => "absent",
            ParkedRange::Whole(_) => "whole",
            ParkedRange::Mixed => "mixed",
        };
        assert_eq!(is(memory.take_parked(PAGE, 3 * PAGE)), "absent");
        memory.set_mapped(PAGE, 0);
        memory.set_mapped(2 * PAGE, 0);
        assert!(memory.has_parked(3 * PAGE, PAGE) && !memory.has_parked(4 * PAGE, PAGE));
        for (at, pages) in [(1, 2), (2, 1), (3, 1), (1, 4), (0, 2)] {
            assert_eq!(is(memory.take_parked(at * PAGE, pages * PAGE)), "mixed", "{at} {pages}");
        }
        assert!(matches!(memory.release(tokens[0]), Released::Lives));
        let ParkedRange::Whole(ended) = memory.take_parked(PAGE, 3 * PAGE) else { panic!("whole") };
        assert_eq!(ended.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [tokens[0]]);
        assert!(matches!(memory.release(tokens[1]), Released::Last(_)));
    }

    #[test]
    fn copies_use_addresses_that_the_own_device_may_write_to_the_end() {
        let memory = ProgramMemory::default();
        let token = mapped(&memory, 2, &[4, 8]);
        let address = || memory.items(|_| true)[0].copy_address();
        assert_eq!(address(), None);
        memory.set_access(4 * PAGE, 2 * PAGE, &[access(1, CuMemAccessFlags::READ_WRITE)]);
        memory.set_access(8 * PAGE, 2 * PAGE, &[access(0, CuMemAccessFlags::READ)]);
        assert_eq!(address(), None);
        memory.set_access(8 * PAGE, 2 * PAGE, &[access(0, CuMemAccessFlags::READ_WRITE)]);
        assert_eq!(address(), Some(8 * PAGE));
        memory.set_access(8 * PAGE, 2 * PAGE, &[access(0, CuMemAccessFlags::NONE)]);
        assert_eq!(address(), None);
        // Access to a part has no record of its own.
        memory.set_access(8 * PAGE, PAGE, &[access(0, CuMemAccessFlags::READ_WRITE)]);
        assert!(memory.items(|_| true).is_empty());
        assert_eq!(memory.sums(|_| true), ProgramSums { shared: 2 * PAGE, ..ProgramSums::default() });
        assert!(matches!(memory.release(token), Released::Lives));
    }

    #[test]
    fn a_mapping_lies_on_pieces_and_a_range_cuts_it() {
        let memory = ProgramMemory::default();
        let token = mapped(&memory, 5, &[10]);
        let mut mapping = memory.items(|_| true)[0].mappings[0].1.clone();
        let piece = |offset, bytes| Piece { offset: offset * PAGE, bytes: bytes * PAGE, handle: None };
        let on = |mapping: &ProgramMapping, piece: &Piece| {
            let part = mapping.part_on(10 * PAGE, piece)?;
            Some([part.address, part.bytes, part.offset, part.end].map(|bytes| bytes / PAGE))
        };
        assert_eq!(on(&mapping, &piece(2, 2)), Some([12, 2, 0, 4]));
        assert_eq!(on(&mapping, &piece(4, 1)), Some([14, 1, 0, 5]));
        (mapping.offset, mapping.bytes) = (PAGE, 2 * PAGE);
        assert_eq!(on(&mapping, &piece(0, 5)), Some([10, 2, 1, 2]));
        assert_eq!(on(&mapping, &piece(2, 2)), Some([11, 1, 0, 2]));
        assert_eq!((on(&mapping, &piece(0, 1)), on(&mapping, &piece(3, 2))), (None, None));
        for (at, pages, is_cut) in
            [(10, 5, false), (8, 9, false), (10, 4, true), (11, 4, true), (12, 1, true), (15, 2, false)]
        {
            let expected: &[u64] = if is_cut { &[token] } else { &[] };
            assert_eq!(memory.tokens_cut_by(at * PAGE, pages * PAGE), expected, "{at} {pages}");
        }
    }
}
