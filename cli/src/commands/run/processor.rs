//! The processor that the command was built for: programs and libraries for another are refused.

use object::elf::{EM_AARCH64, EM_X86_64, Machine};

/// How a processor is named in the places where the command meets the name.
pub(super) struct Processor {
    /// In the head of programs and libraries
    pub machine: Machine,
    /// For users
    pub name: &'static str,
    /// The dynamic loader's file, without the last number
    pub loader: &'static str,
    /// In a line of `ldconfig -p`
    pub in_cache: &'static str,
    /// Debian's folder for libraries, in `lib`
    pub debian: &'static str,
    /// Folders of the driver that only this processor has
    pub folders: [&'static str; 3],
}

/// The processor of the command and of its libraries.
pub(super) const PROCESSOR: Processor = if cfg!(target_arch = "aarch64") {
    Processor {
        machine: EM_AARCH64,
        name: "aarch64",
        loader: "ld-linux-aarch64.so.",
        in_cache: "AArch64",
        debian: "aarch64-linux-gnu",
        folders: ["/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu/nvidia/current"],
    }
} else {
    Processor {
        machine: EM_X86_64,
        name: "x86-64",
        loader: "ld-linux-x86-64.so.",
        in_cache: "x86-64",
        debian: "x86_64-linux-gnu",
        folders: ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current"],
    }
};
