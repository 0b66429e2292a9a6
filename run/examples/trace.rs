//! Counts the calls of the driver that a recorded program makes when its requests and frees come by
//! `cuMemAlloc` and `cuMemFree`, over the emulated driver. The work of the device lags behind the
//! program by a number of requests.
//!
//! ```sh
//! cargo run -p cachalot-run --example trace -- libcuda.so.1 trace.csv.gz LAG [SLACK_MIB [SETTINGS]]
//! ```

use cachalot_cuda::driver::types::CuDevice;
use cachalot_emulated_driver::api::Api;
use cachalot_emulated_driver::client::Client;
use cachalot_replay::trace::{Action, Trace};
use cachalot_run::Options;
use cachalot_run::real::Real;
use cachalot_run::serve::Process;
use std::collections::HashMap;
use std::path::Path;

/// The calls that a request or a free may make.
const CALLS: [&str; 7] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuCtxGetCurrent",
    "cuCtxRecordEvent",
    "cuEventQuery",
    "cuEventCreate",
    "cuThreadExchangeStreamCaptureMode",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [library, file, lag, rest @ ..] = arguments.as_slice() else {
        panic!("LIBRARY TRACE LAG [SLACK_MIB [SETTINGS]]")
    };
    let lag: u64 = lag.parse().expect("a number");
    let slack: u64 = rest.first().map_or(0, |mib| mib.parse().expect("a number")) << 20;
    let settings = rest.get(1).cloned().unwrap_or_default();
    let library = Path::new(library);
    let (driver, control) = (Api::load(library).expect("a driver"), Client::load(library).expect("emulated"));
    let real = Real::load(library).expect("a driver");
    assert_eq!(driver.cuInit(0), 0);
    control.set_step(true).expect("before work");
    let process = Process::new(real, Options { slack, settings, ..Options::default() }).expect("settings");
    let mut context = cachalot_cuda::driver::types::CuContext::NULL;
    // SAFETY: `context` outlives the call.
    assert!(unsafe { process.device_primary_ctx_retain(&raw mut context, CuDevice(0)) }.is_success());
    assert_eq!(driver.cuCtxSetCurrent(context.0 as u64), 0);
    let stream = driver.stream(1).expect("a stream");
    let trace = &Trace::load(Path::new(file)).expect("a record")[0];
    let requests = trace.events.iter().filter(|event| event.action == Action::Alloc).count();
    let mut live = HashMap::new();
    let (mut made, mut before, mut most) = (0, [0; CALLS.len()], 0);
    for event in &trace.events {
        match event.action {
            Action::Alloc => {
                made += 1;
                if made == requests / 2 {
                    before = CALLS.map(|call| control.calls(call));
                }
                let mut address = 0;
                // SAFETY: `address` outlives the call.
                assert!(unsafe { process.mem_alloc(&raw mut address, event.size as usize) }.is_success());
                live.insert(event.addr, address);
                assert_eq!(driver.cuMemsetD8Async(address, 1, 1, stream), 0);
                control.step(control.pending(stream).saturating_sub(lag));
                if made % 64 == 0 {
                    most = most.max(process.counts().held_bytes);
                }
            }
            Action::FreeRequested => {
                if let Some(address) = live.remove(&event.addr) {
                    // SAFETY: no work is queued after the free.
                    assert!(unsafe { process.mem_free(address) }.is_success());
                }
            }
            _ => {}
        }
    }
    let counted = (made - requests / 2) as f64;
    print!("lag {lag:5} slack {:3} MiB: held {:6} MiB; calls a request:", slack >> 20, most >> 20);
    for (call, before) in CALLS.iter().zip(before) {
        print!(" {call} {:.4}", (control.calls(call) - before) as f64 / counted);
    }
    println!();
}
