//! Numbers of streams that take no call, for the straight path.

use cachalot_core::StreamId;
use cachalot_cuda::driver::types::CuStream;
use cachalot_cuda::{HOST_STREAM, Streams, this_thread};
use std::sync::Arc;

/// How the handles of streams become numbers, as far as this takes no call. All devices of an
/// allocator are of one kind, so it is known before the device is, and whether or not it is open: a
/// device that is not has no memory for the straight path.
pub(crate) enum KnownStreams {
    /// By the table of the driver's streams.
    InTable(Arc<Streams>),
    /// A simulated device's streams are numbered by their handles.
    Simulated,
    /// Memory of the host has one stream, NULL.
    OfHost,
    /// None is known: the driver is asked about each.
    None,
}

impl KnownStreams {
    /// Returns the number of a stream.
    #[inline(always)]
    pub(crate) fn number(&self, stream: CuStream) -> Option<StreamId> {
        match self {
            Self::InTable(streams) => streams.number(stream),
            Self::Simulated => simulated_stream(stream),
            Self::OfHost => stream.is_null().then_some(HOST_STREAM),
            Self::None => None,
        }
    }
}

/// Returns the number of a simulated device's stream: the handle, except for the default streams.
#[inline(always)]
pub(crate) fn simulated_stream(stream: CuStream) -> Option<StreamId> {
    match stream {
        CuStream::NULL | CuStream::LEGACY => Some(StreamId::DEFAULT),
        CuStream::PER_THREAD => Some(StreamId(OWN_STREAM | this_thread())),
        // The core reserves the number with all bits set for "no stream".
        CuStream(handle) => ((handle as u64) < OWN_STREAM).then_some(StreamId(handle as u64)),
    }
}

/// Marks the number of a thread's own default stream. The CUDA backend uses the same mark.
const OWN_STREAM: u64 = 0xffff << 48;

/// Returns the handle of a simulated device's stream, or `None` for another thread's default
/// stream.
pub(crate) fn simulated_stream_handle(stream: StreamId) -> Option<CuStream> {
    match stream.0 {
        0 => Some(CuStream::NULL),
        own if own == OWN_STREAM | this_thread() => Some(CuStream::PER_THREAD),
        other => (other < OWN_STREAM).then_some(CuStream(other as usize)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_and_numbers_of_simulated_streams_name_each_other() {
        let own = StreamId(OWN_STREAM | this_thread());
        let other_threads = StreamId(own.0 + 1);
        for (handle, number) in [
            (CuStream::NULL, StreamId::DEFAULT),
            (CuStream::PER_THREAD, own),
            (CuStream(3), StreamId(3)),
            (CuStream(OWN_STREAM as usize - 1), StreamId(OWN_STREAM - 1)),
        ] {
            assert_eq!(simulated_stream(handle), Some(number));
            assert_eq!(simulated_stream_handle(number), Some(handle));
        }
        assert_eq!(simulated_stream(CuStream::LEGACY), Some(StreamId::DEFAULT));
        // What another thread's own stream is named is no handle here.
        for number in [StreamId(OWN_STREAM), other_threads, StreamId(u64::MAX)] {
            assert_eq!(simulated_stream_handle(number), None, "{number:?}");
            assert_eq!(simulated_stream(CuStream(number.0 as usize)), None, "{number:?}");
        }
    }
}
