//! A C program linked with `-lnvidia-ml` and `-lcuda` asks the installed libraries.

use cachalot_emulated_driver::install::{install, install_nvml};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The file of the description, in the folder of a test.
const FILE: &str = "machine.json";

/// Builds the program beside the libraries.
fn program() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    install(folder.path(), &[]).expect("the driver is built");
    install_nvml(folder.path()).expect("NVML is built");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ask.c");
    let mut command = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    command
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-o"])
        .arg(folder.path().join("ask"));
    let built = command.arg(source).arg("-L").arg(folder.path()).args(["-lnvidia-ml", "-lcuda"]).output();
    let built = built.expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    folder
}

/// Runs a case of the program, with a description and variables, and returns what it printed on the
/// standard error.
fn ask(case: &str, description: Option<&str>, variables: &[(&str, &str)]) -> String {
    let folder = program();
    let mut command = Command::new(folder.path().join("ask"));
    command.arg(case).env("LD_LIBRARY_PATH", folder.path());
    command.env("CACHALOT_EMU_PROCESSES", folder.path().join("processes")).envs(variables.iter().copied());
    if let Some(description) = description {
        fs::write(folder.path().join(FILE), description).expect("a file");
        command.env("CACHALOT_EMU_NVML", folder.path().join(FILE));
    }
    let output = command.output().expect("the program");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{case}: {errors}");
    errors
}

#[test]
fn every_call_has_conditions_and_answers_their_codes() {
    assert_eq!(ask("conditions", None, &[]), "");
}

#[test]
fn nvml_and_the_driver_tell_of_one_machine() {
    assert_eq!(ask("driver", None, &[("CACHALOT_EMU_ATTRIBUTES", r#"{"75":8,"76":6}"#)]), "");
}

#[test]
fn a_file_describes_the_machine() {
    let described = r#"{"driver_version":"535.104.05","cuda_version":"12.2","count":8,"devices":[
        {"name":"NVIDIA A100-SXM4-80GB","memory":"80GiB","reserved":"512MiB","utilization":{"gpu":97},
         "temperature":71,"power_watts":311,"fan":40,"clocks":{"sm":1410},
         "processes":[{"pid":4711,"name":"python train.py","memory":"4GiB"},
                      {"pid":4712,"memory":"1GiB","kind":"graphics"}]}]}"#;
    assert_eq!(ask("described", Some(described), &[]), "");
}

#[test]
fn a_device_is_divided_into_instances() {
    let divided = r#"{"devices":[{"name":"A100","memory":"40GiB",
        "mig":[{"profile":"1g.10gb","memory":"10GiB"},{"profile":"2g.20gb","memory":"20GiB","gpu_instance":5}],
        "processes":[{"pid":1,"memory":"3GiB","mig":1}]}]}"#;
    assert_eq!(ask("mig", Some(divided), &[]), "");
}

#[test]
fn limits_of_a_control_group_are_lines_of_its_files() {
    let group = tempfile::tempdir().expect("a folder");
    let write = |file: &str, text: &str| fs::write(group.path().join(file), text).expect("written");
    fs::create_dir(group.path().join("inner")).expect("a folder");
    write("dmem.current", "nvidia/0000:01:00.0/vidmem 7\nnvidia/0000:02:00.0/vidmem 99\n");
    write("dmem.min", "nvidia/0000:01:00.0/vidmem 0\n");
    write("dmem.max", "nvidia/0000:01:00.0/vidmem max\nnvidia/0000:02:00.0/vidmem 500\n");
    let device = r#"{"devices":[{"bus_id":"0000:01:00.0","memory":1000}]}"#;
    assert_eq!(ask("limits", Some(device), &[("GROUP", group.path().to_str().expect("a path"))]), "");
    let read = |file: &str| fs::read_to_string(group.path().join(file)).expect("a file");
    assert_eq!(read("dmem.max"), "nvidia/0000:02:00.0/vidmem 500\nnvidia/0000:01:00.0/vidmem 800\n");
    assert_eq!(read("dmem.min"), "nvidia/0000:01:00.0/vidmem 600\n");
}

#[test]
fn functions_fail_on_demand() {
    let rules = r#"{"errors":[{"function":"nvmlDeviceGetPowerUsage","code":"UNKNOWN","nth":2,"count":1},
        {"function":"*","device":1,"code":"GPU_IS_LOST"},{"function":"nvmlDeviceGetMemoryInfo","code":3}]}"#;
    assert_eq!(ask("errors", Some(rules), &[]), "");
}

#[test]
fn events_of_the_file_are_given_once_also_those_that_come_later() {
    assert_eq!(ask("events", Some(r#"{"events":[{"device":1,"kind":"xid","data":79}]}"#), &[]), "");
}

#[test]
fn a_file_that_gets_a_mistake_changes_nothing_and_is_named_once() {
    let said = ask("changed", Some(r#"{"count":3}"#), &[]);
    assert!(said.contains(FILE) && said.lines().count() == 1, "{said}");
}

#[test]
fn a_mistake_in_the_file_or_a_setting_fails_the_start_and_is_named() {
    let said = ask("init", Some(r#"{"devices":[{"memory":"80 GX"}]}"#), &[]);
    assert!(said.contains(FILE) && said.contains("devices[0].memory") && said.contains("80 GX"), "{said}");
    let said = ask("init", None, &[("CACHALOT_EMU_NVML", "/nowhere/machine.json")]);
    assert!(said.contains("/nowhere/machine.json: "), "{said}");
    let said = ask("init", None, &[("CACHALOT_EMU_NVML", "/")]);
    assert!(said.contains("/: "), "{said}");
    let said = ask("init", None, &[("CACHALOT_EMU_MEMORY", "much")]);
    assert!(said.contains("CACHALOT_EMU_MEMORY is a number, not much"), "{said}");
}

#[test]
fn only_functions_of_nvml_are_exported() {
    let folder = program();
    let mut command = Command::new("nm");
    let listed = command.args(["-D", "--defined-only", "--format=posix"]).arg(folder.path().join("libnvidia-ml.so.1"));
    let listed = String::from_utf8(listed.output().expect("nm").stdout).expect("names");
    let others: Vec<_> = listed.lines().filter(|line| !line.starts_with("nvml")).collect();
    assert!(others.is_empty() && listed.lines().count() > 100, "{others:?}");
}
