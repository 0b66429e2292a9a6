//! Recorded programs as explicit calls of an allocator, from `cachalot-tuner`, and the allocator
//! that the command runs them on.

pub use cachalot_tuner::program::{
    DEVICE, DriverTime, GRAPHS, LeftOut, Operation, Position, Program, Refusal, Run, Settings, Subject, median,
    nanoseconds_per_call,
};

use cachalot_core::Allocator;
use cachalot_core::simulated::SimulatedDevice;
use cachalot_policies::Tables;

/// The core's allocator over a simulated device.
pub type OnDevice = Allocator<SimulatedDevice, parking_lot::RawMutex, Tables>;
