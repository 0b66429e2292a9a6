//! Streams: made, ended, waited for.

use super::Worker;
use crate::abi;
use crate::driver::insist;
use crate::places::{Kind, Life, Rest, Stream};
use crate::world::add;
use std::sync::Arc;

/// Greatest number of the program's streams.
const MOST_STREAMS: usize = 12;

impl Worker {
    /// Makes a stream.
    pub(crate) fn make_stream(&mut self) {
        if self.world.streams.read().len() >= MOST_STREAMS {
            return;
        }
        let device = self.any_device();
        self.enter(device);
        // Most streams do not wait for the legacy stream, as in PyTorch.
        let flags = u32::from(self.rng.u8(..4) > 0);
        let stream = Stream::make(&self.world.driver, device, flags);
        self.say(|| format!("stream {:#x} flags {flags}", stream.handle));
        self.world.streams.write().push(stream);
        add(&self.world.tally.streams);
    }

    /// Ends a stream without present users, with unfinished work.
    pub(crate) fn end_stream(&mut self) {
        let stream = self.any_stream();
        if stream.kind != Kind::Made {
            return;
        }
        let mut streams = self.world.streams.write();
        let before = streams.len();
        streams.retain(|other| !Arc::ptr_eq(other, &stream));
        let is_mine = streams.len() < before;
        drop(streams);
        if is_mine && !self.try_end(&stream) {
            self.world.streams.write().push(stream);
        }
    }

    /// Ends a stream unless the stream is in use or parked. Returns whether the stream has ended.
    fn try_end(&mut self, stream: &Arc<Stream>) -> bool {
        let Some(mut life) = stream.life.try_write() else { return false };
        if stream.domain.begin(&[Rest::Awake]).is_none() {
            return false;
        }
        self.enter(stream.device);
        let driver = &self.world.driver;
        let mut event = 0;
        insist("cuEventCreate", || driver.event_create(&mut event, 2));
        insist("cuEventRecord", || driver.event_record(event, stream.handle));
        self.say(|| format!("end of stream {:#x}", stream.handle));
        let unreported = self.world.case.ask && self.rng.bool();
        if !unreported {
            self.report_end(stream);
        }
        insist("cuStreamDestroy", || driver.stream_destroy(stream.handle));
        *life = Life::Ended(event);
        // The blocks of the stream stay as they are: their memory cannot be parked any more.
        stream.domain.set(Rest::Awake);
        true
    }

    /// Announces the end of a stream, again after a fault.
    fn report_end(&self, stream: &Stream) {
        for _ in 0..1000 {
            let reply = self.world.allocator.stream_destroyed(stream.device as i32, abi::stream(stream.handle));
            if reply.judge(self.situation()) {
                break;
            }
        }
    }

    /// Announces the end of the thread's own default stream of a device.
    pub(crate) fn end_own_stream(&mut self, device: usize) {
        let stream = Arc::clone(&self.own[device]);
        self.enter(device);
        let driver = &self.world.driver;
        let mut event = 0;
        insist("cuEventCreate", || driver.event_create(&mut event, 2));
        insist("cuEventRecord", || driver.event_record(event, stream.handle));
        self.report_end(&stream);
        *stream.life.write() = Life::Ended(event);
        if stream.domain.rest() == Rest::Parked {
            self.say(|| "the thread's own stream ends while it is parked".to_owned());
        }
    }

    /// Ends a stream known to the calling thread alone.
    pub(crate) fn end_for_good(&mut self, stream: &Arc<Stream>) {
        let ended = self.try_end(stream);
        debug_assert!(ended, "the stream is in use");
    }

    /// Waits for the work of a live or ended stream.
    pub(crate) fn wait_for(&self, stream: &Stream) {
        let life = stream.life.read_recursive();
        let driver = &self.world.driver;
        self.enter(stream.device);
        match *life {
            Life::Alive => insist("cuStreamSynchronize", || driver.stream_synchronize(stream.handle)),
            Life::Ended(event) => insist("cuEventSynchronize", || driver.event_synchronize(event)),
        }
    }

    /// Waits for a stream.
    pub(crate) fn synchronize(&mut self) {
        let stream = self.any_stream();
        let Some(_alive) = stream.alive() else { return };
        if stream.is_usable_by(self.id) {
            self.enter(stream.device);
            insist("cuStreamSynchronize", || self.world.driver.stream_synchronize(stream.handle));
        }
    }
}
