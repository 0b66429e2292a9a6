//! `cachalot park`, `wake` and `status`: a process leaves the GPU, comes back, and says how it is.

mod answers;
mod ask;
mod status;

pub(crate) use ask::{ParkArgs, WakeArgs, park, wake};
pub(crate) use status::{StatusArgs, status};
