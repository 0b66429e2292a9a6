//! Numbers of streams that take no call, for the straight path.

use crate::c::device::simulated_stream;
use cachalot_core::StreamId;
use cachalot_cuda::driver::types::CuStream;
use cachalot_cuda::{HOST_STREAM, Streams};
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
