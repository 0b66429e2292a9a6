//! What the emulated driver and the emulated NVML say alike, so that a program that asks both gets
//! one answer: the names of the devices, the settings in the environment, and the processes that
//! hold memory.

pub mod identity;
pub mod processes;
pub mod settings;
