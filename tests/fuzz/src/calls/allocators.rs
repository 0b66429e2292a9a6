//! Allocators: creation, settings, description.

use super::argument::{Device, Handle, Size, Text, Word};
use super::world::World;
use arbitrary::Arbitrary;
use cachalot::c::abi::{CACHALOT_SIMULATED, cachalot_device_info, cachalot_options, cachalot_status};
use cachalot::c::capi::{
    cachalot_check_health, cachalot_configure, cachalot_create, cachalot_destroy, cachalot_enable_peer_access,
    cachalot_get_config, cachalot_get_device_count, cachalot_get_device_info, cachalot_status_name,
    cachalot_status_text,
};
use cachalot::c::status::{CACHALOT_ERROR_BUSY, CACHALOT_OK};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};

/// Greatest number of devices in the options.
const MOST_DEVICES: usize = u8::MAX as usize + 1;

/// All flags valid for simulated devices.
const FLAGS: u8 = 0x2e;

/// The arguments of `cachalot_create`.
#[derive(Arbitrary, Debug)]
pub(super) struct Options {
    size: Size,
    flags: u8,
    device_count: u8,
    devices: Option<[i8; 4]>,
    contexts: u8,
    config: Option<Text>,
    limit: Word,
    memory: Word,
}

/// Memory for a structure of any accepted size.
#[repr(C, align(16))]
pub(super) struct Room([u8; 1 << 14]);

impl Room {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self([0; 1 << 14]))
    }

    /// Returns the room as a structure with the given `struct_size`. The library refuses a size
    /// above the room's.
    pub(super) fn of<T>(&mut self, size: &Size) -> *mut T {
        let size = match *size {
            Size::Right => size_of::<T>(),
            Size::Other(size) => size as usize,
        };
        self.0[..size_of::<usize>()].copy_from_slice(&size.to_ne_bytes());
        self.0.as_mut_ptr().cast()
    }
}

impl World {
    /// Creates an allocator, unless the program has an allocator.
    pub(super) fn create(&mut self, options: &Options) -> cachalot_status {
        self.end();
        let devices: Option<Vec<c_int>> =
            options.devices.map(|few| few.map(c_int::from).repeat(MOST_DEVICES / few.len()));
        let contexts: Option<Vec<*mut c_void>> =
            (options.contexts == 0).then(|| vec![without_provenance_mut(8); MOST_DEVICES]);
        let mut room = Room::new();
        let given = room.of::<cachalot_options>(&options.size);
        // SAFETY: the room is longer than the structure, and any bytes are valid.
        let given = unsafe { &mut *given };
        given.flags = CACHALOT_SIMULATED
            | u32::from(match options.flags {
                0..128 => 0,
                128..224 => options.flags & FLAGS,
                _ => options.flags,
            });
        given.device_count =
            u32::from(if options.device_count < 240 { options.device_count % 3 } else { options.device_count });
        given.devices = devices.as_ref().map_or(null(), Vec::as_ptr);
        given.contexts = contexts.as_ref().map_or(null(), Vec::as_ptr);
        given.config = Text::pointer(options.config.as_ref());
        given.limit_bytes = options.limit.0;
        given.simulated_bytes = options.memory.0;
        let mut handle = null_mut();
        // SAFETY: all memory behind the options outlives the call and has the stated length.
        let status = unsafe { cachalot_create(given, &raw mut handle) };
        assert_eq!(status == CACHALOT_OK, !handle.is_null());
        self.handle = handle;
        status
    }
}

calls! {
    |world|
    Create(options: Options) => world.create(options),
    Destroy(handle: Handle) => {
        let status = cachalot_destroy(world.handle(handle));
        if world.is_own(handle) && status != CACHALOT_ERROR_BUSY {
            world.forget();
        }
        status
    },
    Configure(handle: Handle, text: Option<Text>) => {
        // SAFETY: the text outlives the call.
        unsafe { cachalot_configure(world.handle(handle), Text::pointer(text.as_ref())) }
    },
    Config(handle: Handle, device: Device, capacity: u8, counts: bool) => {
        let (mut buffer, mut length) = (vec![0; usize::from(*capacity)], 0);
        let length = if *counts { &raw mut length } else { null_mut() };
        // SAFETY: the buffer has the passed length, and both outlive the call.
        unsafe { cachalot_get_config(world.handle(handle), device.0, buffer.as_mut_ptr(), buffer.len(), length) }
    },
    Describe(handle: Handle, device: Device, size: Size) => {
        let (handle, mut count, mut room) = (world.handle(handle), 0, Room::new());
        // SAFETY: the variable outlives the call.
        let status = unsafe { cachalot_get_device_count(handle, &raw mut count) };
        assert_eq!(status == CACHALOT_OK, count > 0);
        // SAFETY: the room outlives the call.
        unsafe { cachalot_get_device_info(handle, device.0, room.of::<cachalot_device_info>(size)) }
    },
    Health(handle: Handle, device: Device) => cachalot_check_health(world.handle(handle), device.0),
    EnablePeerAccess(handle: Handle, device: Device, peer: Device) =>
        cachalot_enable_peer_access(world.handle(handle), device.0, peer.0),
    StatusName(status: i32) => {
        for text in [cachalot_status_name(*status), cachalot_status_text(*status)] {
            // SAFETY: the texts are static.
            assert!(!unsafe { CStr::from_ptr(text) }.is_empty());
        }
        CACHALOT_OK
    },
}
