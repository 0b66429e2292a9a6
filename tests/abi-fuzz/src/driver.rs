//! The emulated driver: the functions that programs of the fuzzer call, and the controls.

use cachalot_emulated_driver::client::Client;
use std::ffi::{c_int, c_void};

/// A function that a stream calls when the work before is done.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Declares the table of driver functions, with a method for each function.
macro_rules! driver {
    ($($name:ident = $symbol:literal($($arg:ident: $type:ty),*);)*) => {
        /// The functions of a loaded driver. Every method returns the code of the driver.
        pub(crate) struct Driver {
            /// The controls of the emulated driver.
            pub(crate) control: Client,
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        impl Driver {
            /// Loads the driver from a path.
            ///
            /// # Errors
            /// The text of the loader.
            pub(crate) fn load(path: &str) -> Result<Self, String> {
                let control = Client::load(path).map_err(|error| error.to_string())?;
                $(
                    // SAFETY: the type is the one of the driver's header.
                    let $name = *unsafe { control.library().get(concat!($symbol, "\0")) }.map_err(|e| e.to_string())?;
                )*
                Ok(Self { control, $($name,)* })
            }

            $(
                #[doc = concat!("`", $symbol, "`.")]
                #[allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
                pub(crate) fn $name(&self, $($arg: $type),*) -> u32 {
                    // SAFETY: pointers come from references, and host functions get the argument
                    // that belongs to them.
                    unsafe { (self.$name)($($arg),*) }
                }
            )*
        }
    };
}

driver! {
    init = "cuInit"(flags: u32);
    device_get = "cuDeviceGet"(device: &mut c_int, ordinal: c_int);
    retain = "cuDevicePrimaryCtxRetain"(context: &mut u64, device: c_int);
    set_current = "cuCtxSetCurrent"(context: u64);
    synchronize_context = "cuCtxSynchronize"();
    stream_create = "cuStreamCreate"(stream: &mut u64, flags: u32);
    stream_destroy = "cuStreamDestroy_v2"(stream: u64);
    stream_synchronize = "cuStreamSynchronize"(stream: u64);
    stream_wait = "cuStreamWaitEvent"(stream: u64, event: u64, flags: u32);
    event_create = "cuEventCreate"(event: &mut u64, flags: u32);
    event_record = "cuEventRecord"(event: u64, stream: u64);
    event_synchronize = "cuEventSynchronize"(event: u64);
    launch_host = "cuLaunchHostFunc"(stream: u64, function: HostFunction, argument: *mut c_void);
    capture_mode = "cuThreadExchangeStreamCaptureMode"(mode: &mut c_int);
    begin_capture = "cuStreamBeginCapture_v2"(stream: u64, mode: c_int);
    end_capture = "cuStreamEndCapture"(stream: u64, graph: &mut u64);
    instantiate = "cuGraphInstantiateWithFlags"(executable: &mut u64, graph: u64, flags: u64);
    graph_launch = "cuGraphLaunch"(executable: u64, stream: u64);
    executable_destroy = "cuGraphExecDestroy"(executable: u64);
    graph_destroy = "cuGraphDestroy"(graph: u64);
    address_reserve = "cuMemAddressReserve"(address: &mut u64, bytes: usize, alignment: usize, hint: u64, flags: u64);
    address_free = "cuMemAddressFree"(address: u64, bytes: usize);
}

/// Repeats a call of the program until the fault plan lets the call through.
///
/// # Panics
/// If the call fails a thousand times.
pub(crate) fn insist(what: &str, mut call: impl FnMut() -> u32) {
    let mut code = 0;
    for _ in 0..1000 {
        code = call();
        if code == 0 {
            return;
        }
    }
    crate::finding::report("program", &format!("the fuzzer's own {what} answers {code}"));
}
