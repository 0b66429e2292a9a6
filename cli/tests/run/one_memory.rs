//! Programs on a device that shares the host's memory: what users of such machines report, each
//! with the right answer. `tests/results/one_memory.md` has the reports.

use super::clean;
use super::groups::{Holder, Place};
use crate::common::{finish, folder, write};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The attribute of a device that shares the host's memory.
const INTEGRATED: &str = r#"{"18":1}"#;

/// A machine with one memory of 1 GiB, whose driver counts 512 MiB of files as used.
struct Machine {
    place: Place,
    system: PathBuf,
}

impl Machine {
    /// Returns a machine whose system has `available` MiB left, and `swap` MiB of swap.
    fn new(name: &str, available: u64, swap: u64) -> Self {
        let place = Place::new(folder(name));
        let machine = Self { system: place.folder.join("system"), place };
        machine.has("proc/meminfo", &meminfo(available, swap));
        machine
    }

    /// Writes a file of the system.
    fn has(&self, path: &str, text: &str) {
        let file = self.system.join(path);
        fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        fs::write(file, text).expect("written");
    }

    /// Starts the program with options of `cachalot run`, and variables.
    fn start(&self, options: &[&str], variables: &[(&str, &str)]) -> Holder {
        let files = (512_u64 << 20).to_string();
        let mut all: Vec<(&str, &OsStr)> = vec![
            ("CACHALOT_SYSTEM", self.system.as_os_str()),
            ("CACHALOT_EMU_FILE_BYTES", files.as_ref()),
            ("CACHALOT_EMU_ATTRIBUTES", INTEGRATED.as_ref()),
        ];
        all.extend(variables.iter().map(|&(name, value)| (name, value.as_ref())));
        self.place.start_with(options, &all)
    }
}

/// Returns the text of `/proc/meminfo`, of sizes in MiB.
fn meminfo(available: u64, swap: u64) -> String {
    let kib = |mib: u64| mib << 10;
    format!(
        "MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\nSwapFree: {} kB\n",
        kib(1024),
        kib(300),
        kib(available),
        kib(swap)
    )
}

#[test]
fn files_in_the_hosts_memory_count_as_free() {
    let machine = Machine::new("one_files", 800, 0);
    let mut one = machine.start(&[], &[]);
    assert_eq!(one.ask("m"), "800 1024");
    // A file is read: the driver's figure falls, and the system's does not.
    machine.has("proc/meminfo", &meminfo(790, 0));
    assert_eq!(one.ask("m"), "790 1024");
    one.end();
    let mut limited = machine.start(&["--limit", "600MiB"], &[]);
    assert_eq!(limited.ask("m"), "600 600");
    machine.has("proc/meminfo", &meminfo(500, 0));
    assert_eq!(limited.ask("m"), "500 600", "the system has less than the limit leaves");
    limited.end();
}

#[test]
fn memory_that_the_system_does_not_have_is_refused_before_the_driver_tries() {
    // A segment of 600 MiB, and pages of 20 MiB and 2 MiB, of which one is tried when the device
    // opens.
    let cases = [
        ("expandable_segments:False", "629145600", 0),
        ("expandable_segments:True", "20971520", 0),
        ("policy:stitched", "2097152", 1),
    ];
    let available = 400;
    for (config, of_call, most) in cases {
        let machine = Machine::new("one_beyond", available, 0);
        let log = machine.place.folder.join("calls");
        let mut one = machine.start(&["--config", config], &[("CACHALOT_EMU_LOG", log.to_str().expect("UTF-8"))]);
        // The driver has 1 GiB, and would take it from the host.
        assert_eq!(one.ask("a 600"), "2", "{config}");
        let calls = fs::read_to_string(&log).expect("calls");
        let asked = calls.lines().filter(|call| call.contains("cuMemAlloc") || call.contains("cuMemCreate"));
        assert_eq!(asked.filter(|call| call.contains(of_call)).count(), most, "{config}: {calls}");
        // What programs have can move to the swap.
        machine.has("proc/meminfo", &meminfo(available, 700));
        assert_eq!(one.ask("a 600"), "0", "{config}");
        one.end();
    }
}

#[test]
fn a_device_with_memory_of_its_own_is_told_by_the_driver() {
    let machine = Machine::new("one_own", 100, 0);
    let mut one = machine.start(&[], &[("CACHALOT_EMU_ATTRIBUTES", "{}")]);
    assert_eq!(one.ask("m"), "1024 1024", "neither the files nor the system's memory");
    assert_eq!(one.ask("a 900"), "0");
    one.end();
}

#[test]
fn a_limit_of_a_control_group_is_not_that_of_the_devices_memory() {
    let machine = Machine::new("one_group", 800, 0);
    machine.has("proc/self/cgroup", "0::/pod\n");
    machine.has("sys/fs/cgroup/pod/memory.max", "104857600\n");
    machine.has("sys/fs/cgroup/pod/memory.current", "0\n");
    let mut one = machine.start(&[], &[]);
    assert_eq!([one.ask("m"), one.ask("a 300")], ["800 1024", "0"]);
    one.end();
}

#[test]
fn a_board_that_refuses_every_page_is_served_from_segments_and_one_line_says_so() {
    const REFUSED: (&str, &str) = ("CACHALOT_EMU_PLAN", r#"[{"fn": "cuMemCreate", "code": 2}]"#);
    for options in [["--config", "expandable_segments:True"], ["--policy", "stitched"]] {
        let machine = Machine::new("one_refusing", 800, 0);
        let mut one = machine.start(&options, &[REFUSED]);
        assert_eq!(["a 100", "a 200", "f", "a 150"].map(|line| one.ask(line)), ["0"; 4], "{options:?}");
        let errors = one.end();
        assert_eq!(errors.matches("has no virtual memory").count(), 1, "{options:?}: {errors}");
    }
}

#[test]
fn memory_is_parked_to_files_alone() {
    let machine = Machine::new("one_parked", 800, 0);
    let park = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
        finish(command.args(["park", "one"]).env("CACHALOT_RUN_FOLDER", machine.place.shared()))
    };
    let mut one = machine.start(&["--parkable", "--name", "one"], &[]);
    assert_eq!(one.ask("a 40"), "0");
    let refused = park();
    assert_eq!(refused.status, 1, "{}", refused.output);
    let reason = "the device and the host have one memory: `--park-to FOLDER` parks to files";
    assert!(refused.errors.contains(reason), "{}", refused.errors);
    one.end();
    let folder = machine.place.folder.to_str().expect("UTF-8");
    let mut one = machine.start(&["--park-to", folder, "--name", "one"], &[]);
    assert_eq!(one.ask("a 40"), "0");
    let parked = park();
    assert_eq!(parked.status, 0, "{}", parked.errors);
    one.end();
}

#[test]
fn memory_of_the_host_does_not_add_to_the_devices() {
    let machine = Machine::new("one_spilled", 800, 0);
    let mut one = machine.start(&["--limit", "100MiB", "--spill", "2GiB"], &[]);
    assert_eq!([one.ask("m"), one.ask("a 90"), one.ask("a 60")], ["100 100", "0", "2"]);
    let errors = one.end();
    let line = "spill has no effect on device 0: it and the host have one memory";
    assert_eq!(errors.matches(line).count(), 1, "{errors}");
}

#[test]
fn the_ledger_has_the_systems_figure() {
    let machine = Machine::new("one_ledger", 800, 0);
    let mut one = machine.start(&["--ledger"], &[]);
    assert_eq!([one.ask("a 50"), one.ask("m")], ["0", "800 1024"]);
    machine.place.wait_until_top_has("\"used\":234881024");
    one.end();
}

/// A driver's management library whose figures of memory are not supported.
const MANAGEMENT: &str = "int nvmlInit_v2(void) { return 0; }\n\
    int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { *device = (void *)id; return 0; }\n\
    int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *list) {\n\
      (void)device; (void)list; (void)count; return 3; }\n\
    int nvmlDeviceGetMemoryInfo(void *device, void *memory) { (void)device; (void)memory; return 3; }\n";

#[test]
fn a_management_library_without_figures_is_no_failure() {
    let machine = Machine::new("one_management", 800, 0);
    let folder = &machine.place.folder;
    let (source, library) = (write(folder, "management.c", MANAGEMENT), folder.join("libnvidia-ml.so.1"));
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(library).arg(source).status();
    assert!(built.expect("a C compiler").success());
    let variables = [("LD_LIBRARY_PATH", folder.to_str().expect("UTF-8"))];
    let mut one = machine.start(&["--limit", "700MiB"], &variables);
    assert_eq!([one.ask("a 900"), one.ask("a 500"), one.ask("a 300")], ["2", "0", "2"]);
    let errors = one.end();
    assert!(errors.contains("more do not fit"), "{errors}");
}

#[test]
fn the_script_for_a_new_machine_writes_all_answers_to_a_file() {
    let machine = Machine::new("one_script", 800, 0);
    let (script, file) = (
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/try_machine.py"),
        machine.place.folder.join("told.json"),
    );
    let mut command = Command::new("python3");
    command.arg(script).args(["--cachalot", env!("CARGO_BIN_EXE_cachalot"), "--file-mib", "8", "-o"]).arg(&file);
    clean(&mut command).env("LD_LIBRARY_PATH", machine.place.folder.join("driver"));
    command.env("CACHALOT_SYSTEM", &machine.system).env("CACHALOT_EMU_ATTRIBUTES", INTEGRATED);
    command.env("CACHALOT_RUN_FOLDER", machine.place.shared()).env("XDG_CACHE_HOME", &machine.place.folder);
    let finished = finish(&mut command);
    assert_eq!(finished.status, 0, "{}{}", finished.output, finished.errors);
    let told: serde_json::Value = serde_json::from_slice(&fs::read(file).expect("a file")).expect("JSON");
    let parts = &told["parts"];
    assert_eq!((&told["meminfo"]["MemAvailable"], &parts["device"]["said"]["integrated"]), (&800.into(), &1.into()));
    assert_eq!(parts["memory"]["said"]["after the file"]["driver"], serde_json::json!([1024, 1024]));
    let right = |said: &serde_json::Value| said.as_str().is_some_and(|said| said.contains("every byte right"));
    for name in ["alone", "run, segments", "run, expandable", "run, stitched", "run, limit"] {
        assert!(right(&parts[name]["said"]), "{name}: {told:#}");
    }
    let parked = &parts["park"]["said"];
    assert_eq!((&parked["host"]["status"], &parked["files"]["status"]), (&1.into(), &0.into()), "{parked}");
    assert!(right(&parked["host"]["bytes"]) && right(&parked["files"]["bytes"]), "{parked}");
}
