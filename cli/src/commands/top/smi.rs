//! The figures of `nvidia-smi`: the memory of devices and of processes.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long `nvidia-smi` may take: as long as a process with a socket.
const PATIENCE: Duration = Duration::from_secs(2);

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Device {
    /// The number of the GPU, as the tools of the driver name it.
    pub(super) index: u32,
    pub(super) uuid: String,
    /// `None`: the driver does not know, as for a device that shares the host's memory.
    pub(super) memory: Option<Memory>,
}

/// The memory of a device in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Memory {
    pub(super) used: u64,
    pub(super) total: u64,
}

/// The memory of a process on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Process {
    pub(super) device: String,
    pub(super) pid: u32,
    pub(super) used: u64,
}

/// Returns the devices and the processes. Empty where there is no `nvidia-smi`.
pub(super) fn ask() -> (Vec<Device>, Vec<Process>) {
    let devices = lines("--query-gpu=index,uuid,memory.used,memory.total");
    let devices: Vec<_> = devices.iter().filter_map(|line| device(line)).collect();
    if devices.is_empty() {
        return (devices, Vec::new());
    }
    let processes = lines("--query-compute-apps=gpu_uuid,pid,used_memory");
    (devices, processes.iter().filter_map(|line| process(line)).collect())
}

fn lines(query: &str) -> Vec<String> {
    let mut command = Command::new("nvidia-smi");
    command.args([query, "--format=csv,noheader,nounits"]).stdin(Stdio::null()).stderr(Stdio::null());
    let text = answer(command.stdout(Stdio::piped())).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}

/// Returns the output of a command that succeeds in time. A driver that hangs does not answer, and
/// an operator looks just then.
fn answer(command: &mut Command) -> Option<Vec<u8>> {
    let mut child = command.spawn().ok()?;
    let mut output = child.stdout.take()?;
    let (told, answers) = mpsc::channel();
    // Nobody waits for the thread: a child of the command may keep the pipe open.
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = output.read_to_end(&mut text);
        let _ = told.send(read.map(|_| text));
    });
    let Ok(Ok(text)) = answers.recv_timeout(PATIENCE) else {
        // A command in the middle of a call of the driver ends at some later time.
        let _ = child.kill();
        complain!("nvidia-smi did not answer within {} s", PATIENCE.as_secs());
        return None;
    };
    // The end of the output is the end of the command, or close to it.
    child.wait().ok()?.success().then_some(text)
}

/// Reads a number of MiB. A driver that does not know says `[N/A]`.
fn mebibytes(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(1 << 20)
}

fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    line.split(',').map(str::trim).collect::<Vec<_>>().try_into().ok()
}

fn device(line: &str) -> Option<Device> {
    let [index, uuid, used, total] = fields(line)?;
    let memory = mebibytes(used).zip(mebibytes(total)).map(|(used, total)| Memory { used, total });
    Some(Device { index: index.parse().ok()?, uuid: uuid.to_owned(), memory })
}

fn process(line: &str) -> Option<Process> {
    let [device, pid, used] = fields(line)?;
    Some(Process { device: device.to_owned(), pid: pid.parse().ok()?, used: mebibytes(used)? })
}

#[cfg(test)]
mod tests {
    use super::{Device, Memory, Process, device, process};

    #[test]
    fn lines_are_read_and_unknown_figures_left_out() {
        let name = "GPU-1".to_owned();
        let one = |memory| Some(Device { index: 3, uuid: "GPU-1".to_owned(), memory });
        assert_eq!(device("3, GPU-1, 5, 81559"), one(Some(Memory { used: 5 << 20, total: 81559 << 20 })));
        for unknown in ["3, GPU-1, [N/A], [N/A]", "3, GPU-1, [N/A], 81559", "3, GPU-1, 18446744073709551615, 1"] {
            assert_eq!(device(unknown), one(None), "{unknown}");
        }
        assert_eq!(process("GPU-1, 4711, 1024"), Some(Process { device: name, pid: 4711, used: 1 << 30 }));
        for line in ["GPU-1, 5, 7", "", "No devices were found"] {
            assert_eq!(device(line), None, "{line}");
        }
        assert_eq!(process("GPU-1, 4711, [N/A]"), None);
    }
}
