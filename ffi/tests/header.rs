//! Tests of the headers as the contract: the headers compile everywhere, and every type, number and
//! function equals the library's.

use crate::common::{
    self, WARNINGS, library_folder, library_path, output, printed, root, scratch, skip, soname, sources, succeed,
};
use cachalot::c::abi;
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the text of all headers of C, without the part about PyTorch's shim, which is not in the
/// library.
fn header() -> String {
    let torch = std::fs::read_to_string(root().join("include/cachalot_torch.h")).expect("the header exists");
    let (of_library, _) = torch.split_once("/* ---- The shim ---- */").expect("the shim has a part of its own");
    common::c_headers() + of_library
}

#[test]
fn a_header_of_a_topic_can_be_included_alone_and_in_any_order() {
    for (ending, languages) in
        [("h", &[("gcc", "c", "c11"), ("g++", "c++", "c++17")][..]), ("hpp", &[("g++", "c++", "c++17")])]
    {
        include_topics_alone(ending, languages);
    }
}

/// Includes each header of a topic, first and after another one, in each language.
fn include_topics_alone(ending: &str, languages: &[(&str, &str, &str)]) {
    let topics = sources("include/cachalot", ending).into_iter();
    let names: Vec<_> = topics.map(|path| path.file_name().expect("a name").display().to_string()).collect();
    assert!(names.len() > 10, "{names:?}");
    let page = format!("cachalot.{ending}");
    let first = std::fs::read_to_string(root().join("include").join(&page)).expect("the header exists");
    for name in &names {
        assert!(first.contains(&format!("#include \"cachalot/{name}\"\n")), "{page} includes {name}");
        assert!(first.contains(&format!(" *   - cachalot/{name}: ")), "{page} says what {name} is for");
    }
    let folder = scratch("header");
    for &(compiler, language, standard) in languages {
        for (at, name) in names.iter().enumerate() {
            let source = folder.join(format!("{name}.{compiler}.txt"));
            let other = &names[(at + 1) % names.len()];
            let text = format!(
                "#define CACHALOT_EXPERIMENTAL\n#include <cachalot/{name}>\n#include <cachalot/{other}>\n#include <{page}>\n"
            );
            std::fs::write(&source, text).expect("the test's folder can be written");
            let mut command = Command::new(compiler);
            command.args(["-x", language]).arg(format!("-std={standard}")).args(WARNINGS).arg("-fsyntax-only");
            if succeed(command.arg("-I").arg(root().join("include")).arg(&source)).is_none() {
                skip("headers of topics", &format!("no {compiler}"));
            }
        }
    }
}

/// Returns the functions declared in the header.
fn declared() -> BTreeSet<String> {
    let header = header();
    let declarations =
        header.lines().filter(|line| line.starts_with("CACHALOT_API") || line.starts_with("CACHALOT_CHECKED"));
    let names = declarations.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
    let names: BTreeSet<_> = names.map(str::to_owned).collect();
    assert!(names.len() > 40, "{names:?}");
    names
}

/// Returns the installed compilers of a language.
fn compilers(names: [&'static str; 2]) -> Vec<&'static str> {
    let (found, missing): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| output(Command::new(name).arg("--version")).is_some());
    for name in missing {
        skip("the header with another compiler", &format!("no {name}"));
    }
    found
}

/// Compiles and runs a program that includes the headers. Returns the output.
fn run(compiler: &str, language: &str, standard: &str, program: &str) -> String {
    let folder = scratch("header");
    let name = format!("{compiler}-{standard}-{:x}", program.len()).replace('+', "x");
    let (source, binary) = (folder.join(&name).with_extension("txt"), folder.join(&name));
    std::fs::write(&source, program).expect("the test's folder can be written");
    let mut command = Command::new(compiler);
    command.args(["-x", language]).arg(format!("-std={standard}")).args(WARNINGS).arg("-I").arg(root().join("include"));
    command.arg(&source).args(["-x", "none"]).arg("-L").arg(library_path()).arg("-lcachalot").arg("-o").arg(&binary);
    succeed(&mut command).expect("the compiler was found before");
    succeed(Command::new(&binary).env("LD_LIBRARY_PATH", library_path())).expect("it was just built")
}

/// A program that prints the composed version and initializes a value with every macro for
/// initialization.
const PROGRAM: &str = r#"
#define CACHALOT_EXPERIMENTAL
#include "cachalot.h"
#include "cachalot.h" /* twice is fine */
#include <stdio.h>
int main(void) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_block block = CACHALOT_BLOCK_INIT;
  cachalot_forecast outlook = CACHALOT_FORECAST_INIT;
  cachalot_fit fit = CACHALOT_FIT_INIT;
  cachalot_device_info device = CACHALOT_DEVICE_INFO_INIT;
  cachalot_statistics statistics = CACHALOT_STATISTICS_INIT;
  cachalot_plan_report plan = CACHALOT_PLAN_REPORT_INIT;
  cachalot_tune_report tune = CACHALOT_TUNE_REPORT_INIT;
  const cachalot_pool pool = {0, 0};
  printf("%d %u %s\n", CACHALOT_VERSION, (unsigned)cachalot_version(), cachalot_version_string());
  printf("%d %d %d\n", CACHALOT_VERSION_MAJOR, CACHALOT_VERSION_MINOR, CACHALOT_VERSION_PATCH);
  printf("%d\n", options.struct_size == sizeof options && block.struct_size == sizeof block &&
    outlook.struct_size == sizeof outlook && fit.struct_size == sizeof fit && device.struct_size == sizeof device &&
    statistics.struct_size == sizeof statistics && plan.struct_size == sizeof plan && plan.stage == 0 &&
    tune.struct_size == sizeof tune && tune.tuned == 0 && options.flags == 0 && statistics.leaked_bytes == 0 && pool.first == 0);
  return 0;
}
"#;

#[test]
fn the_header_compiles_in_every_language_and_its_version_is_the_librarys() {
    let part = |part: &str| part.parse::<u32>().expect("a number");
    let (major, minor, patch) = (
        part(env!("CARGO_PKG_VERSION_MAJOR")),
        part(env!("CARGO_PKG_VERSION_MINOR")),
        part(env!("CARGO_PKG_VERSION_PATCH")),
    );
    let number = major * 1_000_000 + minor * 1_000 + patch;
    let expected = format!("{number} {number} {}\n{major} {minor} {patch}\n1\n", env!("CARGO_PKG_VERSION"));
    for compiler in compilers(["gcc", "clang"]) {
        for standard in ["c11", "c17", "gnu17"] {
            assert_eq!(run(compiler, "c", standard, PROGRAM), expected, "{compiler} {standard}");
            let with_torch = PROGRAM.replacen("cachalot.h", "cachalot_torch.h", 1);
            assert_eq!(run(compiler, "c", standard, &with_torch), expected, "{compiler} {standard}");
        }
    }
    for compiler in compilers(["g++", "clang++"]) {
        for standard in ["c++17", "c++20"] {
            assert_eq!(run(compiler, "c++", standard, PROGRAM), expected, "{compiler} {standard}");
            for other in ["cachalot.hpp", "cachalot_torch.h"] {
                let program = PROGRAM.replacen("cachalot.h", other, 1);
                assert_eq!(run(compiler, "c++", standard, &program), expected, "{compiler} {standard} {other}");
            }
        }
    }
}

#[test]
fn the_cpp_header_says_which_standard_it_needs() {
    let file = scratch("header").join("old.cpp");
    std::fs::write(&file, "#include <cachalot.hpp>\n").expect("the test's folder can be written");
    for compiler in compilers(["g++", "clang++"]) {
        let mut command = Command::new(compiler);
        command.args(["-std=c++14", "-fsyntax-only", "-I"]).arg(root().join("include")).arg(&file);
        let said = printed(&output(&mut command).expect("the compiler was found before"));
        let first = said.lines().find(|line| line.contains("error")).unwrap_or_default();
        assert!(first.contains("cachalot.hpp needs C++17 or later: compile with -std=c++17"), "{said}");
    }
}

/// Builds and runs a program over a header for a CUDA library, with the given include folders.
fn run_with_cuda(program: &str, folders: &[&Path]) {
    let binary = scratch("header").join(program);
    let mut command = common::compiler(&root().join("tests/c_abi/cpp").join(program).with_extension("cpp"));
    command.arg(root().join("tests/c_abi/cpp").join(program).with_extension("cpp"));
    for folder in folders {
        command.arg("-isystem").arg(folder);
    }
    command.arg("-L").arg(library_path()).arg("-lcachalot").arg("-o").arg(&binary);
    if succeed(&mut command).is_none() {
        return skip("the headers for libraries of CUDA", "no C++ compiler");
    }
    let mut command = Command::new(&binary);
    succeed(command.env("LD_LIBRARY_PATH", library_path()).env("CACHALOT_LIBCUDA", "/nonexistent"));
}

/// Returns the include folder of the CUDA toolkit. Prints a line and returns `None` without a
/// toolkit.
fn toolkit() -> Option<PathBuf> {
    let found = std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("include"));
    let found = found.filter(|folder| folder.join("crt").is_dir() && folder.join("cuda_runtime_api.h").is_file());
    if found.is_none() {
        skip("the headers for libraries of CUDA", "CUDA_HOME names no toolkit");
    }
    found
}

#[test]
fn the_allocator_for_cub_behaves_as_cubs_own() {
    let Some(toolkit) = toolkit() else { return };
    run_with_cuda("cub", &[&toolkit]);
}

#[test]
fn the_resource_satisfies_the_concepts_of_cuda_mr() {
    let Some(toolkit) = toolkit() else { return };
    let own = toolkit.join("cccl");
    let later = std::env::var_os("CACHALOT_CCCL").map(PathBuf::from);
    if later.is_none() {
        skip("the resource with a later CCCL", "CACHALOT_CCCL is not set");
    }
    for cccl in [Some(own), later].into_iter().flatten() {
        run_with_cuda("cuda_mr", &[&cccl, &toolkit]);
    }
}

/// Two files of a program, so that what the header defines in both must be one. With the sanitizers
/// for addresses and undefined behaviour where the compiler has them.
#[test]
fn the_owners_of_cpp_hold_when_moved_assigned_and_empty() {
    const STRICT: [&str; 4] = ["-Wconversion", "-Wsign-conversion", "-Wshadow", "-Wold-style-cast"];
    const SANITIZED: &str = "-fsanitize=address,undefined";
    let source = root().join("tests/c_abi/cpp/owners.cpp");
    for compiler in compilers(["g++", "clang++"]) {
        for standard in ["c++17", "c++20", "c++23"] {
            let [second, binary, plain] =
                ["o", "", "plain"].map(|name| scratch("header").join(format!("owners-{compiler}-{standard}.{name}")));
            let compile = |flags: &[&str]| {
                let mut command = Command::new(compiler);
                command.arg(format!("-std={standard}")).arg("-g").args(WARNINGS).args(STRICT).args(flags);
                command.arg("-I").arg(root().join("include"));
                command
            };
            let linked = |flags: &[&str], to: &Path| {
                succeed(compile(flags).arg("-DSECOND").arg("-c").arg(&source).arg("-o").arg(&second));
                let mut command = compile(flags);
                command.arg(&source).arg(&second).arg("-L").arg(library_path()).args(["-lcachalot", "-lpthread", "-o"]);
                command.arg(to);
                output(&mut command).is_some_and(|done| done.status.success())
            };
            let program = if linked(&[SANITIZED], &binary) { binary } else { plain.clone() };
            if program == plain {
                skip("the owners under sanitizers", &format!("{compiler} has none"));
                assert!(linked(&[], &plain), "{compiler} {standard}");
            }
            let mut command = Command::new(&program);
            // An allocator ends with memory on purpose, and the library is not built for the
            // sanitizer.
            command.env("LD_LIBRARY_PATH", library_path()).env("ASAN_OPTIONS", "detect_leaks=0");
            assert_eq!(succeed(&mut command).as_deref(), Some("owners: well\n"), "{compiler} {standard}");
        }
    }
}

#[test]
fn a_composed_version_takes_all_three_parts() {
    let program = r#"
#include "cachalot.h"
#include <stdio.h>
#undef CACHALOT_VERSION_MAJOR
#undef CACHALOT_VERSION_MINOR
#undef CACHALOT_VERSION_PATCH
#define CACHALOT_VERSION_MAJOR 1
#define CACHALOT_VERSION_MINOR 2
#define CACHALOT_VERSION_PATCH 3
int main(void) { printf("%d", CACHALOT_VERSION); return CACHALOT_VERSION != 1002003; }
"#;
    for compiler in compilers(["gcc", "clang"]) {
        assert_eq!(run(compiler, "c", "c11", program), "1002003");
    }
}

/// Defines the expected layouts of structures from the Rust types.
macro_rules! layouts {
    ($($name:ident { $($field:ident),* })*) => {
        &[$((stringify!($name), size_of::<abi::$name>(), &[$((stringify!($field), offset_of!(abi::$name, $field))),*])),*]
    };
}

/// Name and size of a structure, and the fields with their offsets.
type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

const LAYOUTS: &[Layout] = layouts! {
    cachalot_pool { first, second }
    cachalot_range { allocator, number, base, bytes, page_bytes, device, reserved }
    cachalot_options { struct_size, flags, device_count, devices, contexts, config, limit_bytes, simulated_bytes }
    cachalot_block { struct_size, base, bytes, requested_bytes, stream_id, segment_base, segment_bytes, device, reserved }
    cachalot_forecast { struct_size, address, bytes, outcome, reserved }
    cachalot_fit { struct_size, served, new_bytes, reserved_bytes, device_free_bytes, bound, reserved }
    cachalot_extent { offset, bytes, memory, memory_offset, memory_bytes, flags, reserved }
    cachalot_calls { calls, us }
    cachalot_page_statistics {
        struct_size, mapped_bytes, spare_bytes, stale_bytes, pinned_bytes, moved_bytes, reserve, unreserve, create, destroy, map,
        set_access, unmap, export_fd, stalls, longest_stall_us, consolidated_bytes
    }
    cachalot_reclaim_statistics {
        struct_size, looks, given_back_bytes, given_back_units, obtained_again_bytes, obtained_again_units, too_early_units,
        driver_us, observed_units, idle_bytes, needed_soon_bytes, busy_bytes, unpaid_bytes, budget_us, caution
    }
    cachalot_counter { current, peak, allocated, freed }
    cachalot_statistics {
        struct_size, allocations, allocated_bytes, active_blocks, active_bytes, requested_bytes, inactive_split_bytes, segments,
        reserved_bytes, device_allocs, device_frees, alloc_retries, ooms, leaked_bytes
    }
    cachalot_plan_report {
        struct_size, announced, plans, given_up, no_memory, peak_bytes, lower_bound_bytes, segment_bytes, served, lasting, extra,
        missing, reordered, occupied, stage, reserved
    }
    cachalot_oom_report {
        struct_size, text, requested_bytes, block_bytes, segment_bytes, device_total_bytes, device_free_bytes, process_bytes,
        limit_bytes, allocated_bytes, reserved_bytes, pending_bytes, private_free_bytes, largest_free_bytes,
        largest_free_elsewhere_bytes, device, capturing, spare_bytes, pinned_bytes
    }
    cachalot_trace_entry { struct_size, address, bytes, stream_id, time_us, action, reserved }
    cachalot_park_target { struct_size, tag, stream, kind, reserved }
    cachalot_park_options { struct_size, mode, order }
    cachalot_snapshot_options { struct_size, path, format, flags }
    cachalot_setting { struct_size, key, policies, values, default_value, example, effect }
    cachalot_torch_event { struct_size, address, bytes, stream_id, pool, action, device }
    cachalot_torch_block { base, bytes, requested_bytes, allocated, active }
    cachalot_torch_segment {
        struct_size, base, bytes, stream_id, pool, blocks, block_count, device, large, expandable, number
    }
    cachalot_device_info {
        struct_size, total_bytes, free_bytes, process_bytes, reserved_bytes, limit_bytes, leaked_bytes, ordinal, simulated,
        virtual_memory, reserved
    }
};

#[test]
fn structures_lie_in_memory_as_the_c_compiler_has_them() {
    let (mut body, mut expected) = (String::new(), String::new());
    for (name, size, fields) in LAYOUTS {
        writeln!(body, "printf(\"{name} %zu\\n\", sizeof({name}));").expect("a string");
        writeln!(expected, "{name} {size}").expect("a string");
        for (field, offset) in *fields {
            writeln!(body, "printf(\"{field} %zu\\n\", offsetof({name}, {field}));").expect("a string");
            writeln!(expected, "{field} {offset}").expect("a string");
        }
    }
    let program =
        format!("#include \"cachalot_torch.h\"\n#include <stdio.h>\nint main(void) {{\n{body}return 0;\n}}\n");
    for compiler in compilers(["gcc", "clang"]) {
        assert_eq!(run(compiler, "c", "c11", &program), expected);
    }
}

/// Returns the constants of the header, each with the text after `=` or after the name.
fn constants() -> BTreeMap<String, String> {
    let header = header();
    let of_enums = header.lines().filter_map(|line| line.trim_start().strip_prefix("CACHALOT_")?.split_once(" = "));
    let of_macros = header.lines().filter_map(|line| line.strip_prefix("#define CACHALOT_")?.split_once(' '));
    let of_macros = of_macros.filter(|(name, _)| {
        !(name.starts_with("VERSION") || name.ends_with("_INIT") || ["H", "TORCH_H", "API", "CHECKED"].contains(name))
    });
    let value = |text: &str| text.split([',', ' ']).next().expect("split has a first part").to_owned();
    of_enums.chain(of_macros).map(|(name, text)| (format!("CACHALOT_{name}"), value(text))).collect()
}

/// Returns the Rust constant with a name.
macro_rules! number_of {
    ($wanted:expr; $($name:ident)*) => {
        match $wanted {
            $(stringify!($name) => Some(i128::from(abi::$name)),)*
            _ => None,
        }
    };
}

/// Returns the name of a status.
fn name_of(status: i32) -> &'static str {
    // SAFETY: the library's texts last forever.
    let name = unsafe { CStr::from_ptr(cachalot::c::capi::cachalot_status_name(status)) };
    name.to_str().expect("ASCII")
}

#[test]
fn constants_are_the_librarys() {
    let constants = constants();
    let list =
        constants.keys().fold(String::new(), |list, name| list + &format!("printf(\"%lld\\n\", (long long){name});\n"));
    let program = format!("#include \"cachalot.h\"\n#include <stdio.h>\nint main(void) {{\n{list}return 0;\n}}\n");
    let Some(compiler) = compilers(["gcc", "clang"]).pop() else { return };
    let printed = run(compiler, "c", "c11", &program);
    let values = printed.lines().map(|line| line.parse::<i128>().expect("a number"));
    for (name, value) in constants.keys().zip(values) {
        if name == "CACHALOT_OK" || name.starts_with("CACHALOT_ERROR_") {
            let status = i32::try_from(value).expect("a status");
            assert_eq!(name_of(status), name);
            continue;
        }
        let known = number_of!(name.as_str();
            CACHALOT_SIMULATED CACHALOT_NO_CACHING CACHALOT_ASK_STREAM_ID CACHALOT_PEER_ACCESS CACHALOT_ENVIRONMENT
            CACHALOT_OPEN_LATER CACHALOT_HOST CACHALOT_STREAMS_REPORTED CACHALOT_EXTENT_SEGMENT CACHALOT_BUFFER_FIXED CACHALOT_BUFFER_GAP
            CACHALOT_PARK_TAG CACHALOT_PARK_STREAM CACHALOT_PARK_KEEP CACHALOT_PARK_DROP CACHALOT_PARK_ZERO
            CACHALOT_PARK_AFTER_DEVICE CACHALOT_PARK_AFTER_STREAMS CACHALOT_AWAKE CACHALOT_ASLEEP CACHALOT_WAKING CACHALOT_LENT
            CACHALOT_COLD CACHALOT_HOT CACHALOT_POOL_USE_ON_OOM CACHALOT_POOL_NO_SPLIT CACHALOT_ROUTE_ALL CACHALOT_ROUTE_STREAM CACHALOT_ROUTE_THREAD
            CACHALOT_STAGE_WAITING CACHALOT_STAGE_OBSERVING CACHALOT_STAGE_PLANNING CACHALOT_STAGE_READY
            CACHALOT_STAGE_SERVING CACHALOT_WOULD_HIT CACHALOT_WOULD_OBTAIN CACHALOT_WOULD_EXPAND CACHALOT_WOULD_RELEASE CACHALOT_WOULD_FAIL
            CACHALOT_BOUND_NONE CACHALOT_BOUND_LIMIT CACHALOT_BOUND_FRACTION CACHALOT_BOUND_DEVICE CACHALOT_BOUND_OTHER
            CACHALOT_BOUND_TAG
            CACHALOT_ACTION_ALLOC CACHALOT_ACTION_FREE_REQUESTED CACHALOT_ACTION_FREE_COMPLETED
            CACHALOT_ACTION_SEGMENT_ALLOC CACHALOT_ACTION_SEGMENT_FREE CACHALOT_ACTION_SEGMENT_MAP
            CACHALOT_ACTION_SEGMENT_UNMAP CACHALOT_ACTION_OOM CACHALOT_ACTION_SETTINGS_CHANGED
            CACHALOT_ACTION_SETTINGS_TAKEN_BACK CACHALOT_ACTION_SPILLED CACHALOT_TUNE_OFF CACHALOT_TUNE_RECORDING CACHALOT_TUNE_SEARCHING
            CACHALOT_TUNE_TRIAL CACHALOT_JSON CACHALOT_PICKLE CACHALOT_WITHOUT_EVENTS);
        // The constant printed as a signed number.
        let known =
            if name == "CACHALOT_NO_LIMIT" { Some(i128::from(abi::CACHALOT_NO_LIMIT.cast_signed())) } else { known };
        assert_eq!(known, Some(value), "{name}");
    }
    let statuses = constants.keys().filter(|name| name.starts_with("CACHALOT_ERROR_")).count();
    // Every status of the library is in the header too.
    let known = (1..2000).filter(|&status| name_of(status) != "CACHALOT_ERROR_UNKNOWN");
    assert_eq!(known.count(), statuses);
}

/// Published numbers never change.
#[test]
fn statuses_have_the_numbers_that_they_always_had() {
    let pinned = [
        ("CACHALOT_OK", 0),
        ("CACHALOT_ERROR_NULL", 110),
        ("CACHALOT_ERROR_STRUCT_SIZE", 114),
        ("CACHALOT_ERROR_INVALID_HANDLE", 120),
        ("CACHALOT_ERROR_POISONED", 124),
        ("CACHALOT_ERROR_BUSY", 128),
        ("CACHALOT_ERROR_UNKNOWN_DEVICE", 132),
        ("CACHALOT_ERROR_INVALID_POINTER", 136),
        ("CACHALOT_ERROR_WRONG_SIZE", 140),
        ("CACHALOT_ERROR_NOT_PINNED", 142),
        ("CACHALOT_ERROR_TOO_LARGE", 144),
        ("CACHALOT_ERROR_INVALID_STREAM", 148),
        ("CACHALOT_ERROR_UNKNOWN_POOL", 152),
        ("CACHALOT_ERROR_UNKNOWN_RANGE", 154),
        ("CACHALOT_ERROR_NOT_ROUTED", 156),
        ("CACHALOT_ERROR_INVALID_CONFIG", 160),
        ("CACHALOT_ERROR_INVALID_FRACTION", 164),
        ("CACHALOT_ERROR_UNKNOWN_KEY", 168),
        ("CACHALOT_ERROR_INVALID_ARGUMENT", 172),
        ("CACHALOT_ERROR_BUFFER_TOO_SMALL", 176),
        ("CACHALOT_ERROR_OUT_OF_MEMORY", 210),
        ("CACHALOT_ERROR_REJECTED", 214),
        ("CACHALOT_ERROR_TABLE_FULL", 220),
        ("CACHALOT_ERROR_STILL_HELD", 230),
        ("CACHALOT_ERROR_NO_DRIVER", 310),
        ("CACHALOT_ERROR_DRIVER_TOO_OLD", 314),
        ("CACHALOT_ERROR_DRIVER", 320),
        ("CACHALOT_ERROR_UNSUPPORTED", 330),
        ("CACHALOT_ERROR_CAPTURING", 340),
        ("CACHALOT_ERROR_CONTEXT_LOST", 350),
        ("CACHALOT_ERROR_SHUTDOWN", 354),
        ("CACHALOT_ERROR_FORKED", 358),
        ("CACHALOT_ERROR_IO", 410),
        ("CACHALOT_ERROR_STOPPED", 420),
        ("CACHALOT_ERROR_PANIC", 910),
    ];
    for (name, number) in pinned {
        assert_eq!(name_of(number), name, "{number}");
    }
}

/// Returns whether a function is exported to C programs.
fn is_exported(function: &syn::ItemFn) -> bool {
    matches!(function.vis, syn::Visibility::Public(_)) && function.sig.abi.is_some()
}

/// Returns the files with exported functions.
fn exporting() -> Vec<PathBuf> {
    let folders = ["capi", "torch"].map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join("src/c").join(folder));
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("the folder exists"));
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// Formats a type or a parameter. The library names a type by the last part of the path, bindgen by
/// the whole path.
fn canonical(tokens: &impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string();
    let text =
        [":: std :: os :: raw :: ", ":: std :: option :: "].iter().fold(text, |text, path| text.replace(path, ""));
    text.replace(" , >", " >").replace(" , )", " )")
}

/// Functions with names and types of parameters and the return type, and other types with their
/// definitions.
#[derive(Default)]
struct Interface {
    functions: BTreeMap<String, String>,
    types: BTreeMap<String, String>,
}

impl Interface {
    fn learn_function(&mut self, signature: &syn::Signature) {
        let parameters = signature.inputs.iter().map(canonical).collect::<Vec<_>>().join(", ");
        self.functions.insert(signature.ident.to_string(), format!("({parameters}) {}", canonical(&signature.output)));
    }

    /// Adds an item of the library's source, or of bindgen's output for the header.
    fn learn(&mut self, item: &syn::Item) {
        match item {
            syn::Item::ForeignMod(block) => {
                for item in &block.items {
                    if let syn::ForeignItem::Fn(function) = item {
                        self.learn_function(&function.sig);
                    }
                }
            }
            syn::Item::Fn(function) if is_exported(function) => self.learn_function(&function.sig),
            syn::Item::Type(alias) if alias.ident.to_string().starts_with("cachalot_") => {
                self.types.insert(alias.ident.to_string(), canonical(&alias.ty));
            }
            syn::Item::Struct(of) if of.ident.to_string().starts_with("cachalot_") => {
                let fields = of.fields.iter().filter_map(|field| Some((field.ident.as_ref()?, &field.ty)));
                let fields = fields.filter(|(name, _)| !name.to_string().starts_with('_'));
                let fields: Vec<_> = fields.map(|(name, ty)| format!("{name}: {}", canonical(ty))).collect();
                self.types.insert(of.ident.to_string(), fields.join(", "));
            }
            _ => {}
        }
    }

    /// Reads the interface from the library's source.
    fn of_library() -> Self {
        let mut interface = Self::default();
        let abi = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/c/abi.rs");
        for file in exporting().into_iter().chain([abi]) {
            let text = std::fs::read_to_string(&file).expect("the file exists");
            syn::parse_file(&text).expect("Rust").items.iter().for_each(|item| interface.learn(item));
        }
        interface
    }

    /// Reads the interface from bindgen's output for the header.
    fn of_header() -> Self {
        let mut builder = bindgen::builder()
            .header(root().join("include/cachalot_torch.h").display().to_string())
            .clang_arg("-DCACHALOT_EXPERIMENTAL")
            .default_enum_style(bindgen::EnumVariation::Consts)
            .formatter(bindgen::Formatter::None)
            .layout_tests(false)
            .allowlist_item("cachalot_.*");
        // The packaged libclang has no headers, so the headers of the C compiler serve.
        if let Some(include) = output(Command::new("cc").arg("-print-file-name=include")) {
            builder = builder.clang_arg(format!("-I{}", String::from_utf8_lossy(&include.stdout).trim()));
        }
        let text = builder.generate().expect("libclang reads the header").to_string();
        let mut interface = Self::default();
        syn::parse_file(&text).expect("bindgen writes Rust").items.iter().for_each(|item| interface.learn(item));
        interface
    }
}

#[test]
fn every_signature_is_what_bindgen_reads_in_the_header() {
    let library = Interface::of_library();
    let names: BTreeSet<_> = library.functions.keys().cloned().collect();
    assert_eq!(names, declared(), "exported and declared functions");
    if std::env::var_os("LIBCLANG_PATH").is_none() && output(Command::new("clang").arg("--version")).is_none() {
        return skip("signatures against the header", "no libclang: LIBCLANG_PATH is not set");
    }
    let header = Interface::of_header();
    for (name, signature) in &header.functions {
        assert_eq!(library.functions.get(name), Some(signature), "{name}");
    }
    for (name, meaning) in &header.types {
        assert_eq!(library.types.get(name), Some(meaning), "{name}");
    }
    assert_eq!(library.types.keys().collect::<Vec<_>>(), header.types.keys().collect::<Vec<_>>());
}

/// A panic must not leave a function: every body is inside the boundary, without code outside, or
/// is one call of a function of the file whose body is.
#[test]
fn every_exported_function_is_one_call_of_the_boundary() {
    const BOUNDARIES: [&str; 5] = [
        "boundary :: with_instance (",
        "boundary :: straight (",
        "boundary :: without_instance (",
        "boundary :: infallible (",
        "plugin :: with_allocator (",
    ];
    /// Returns whether the body of a function is one call of one of `calls`.
    fn is_one_of<'a>(function: &syn::ItemFn, calls: impl IntoIterator<Item = &'a str>) -> bool {
        let texts = function.block.stmts.iter().filter(|statement| !matches!(statement, syn::Stmt::Item(_)));
        let code: Vec<String> = texts.map(|statement| statement.to_token_stream().to_string()).collect();
        let [body] = &code[..] else { return false };
        calls.into_iter().any(|call| body.starts_with(call))
    }
    let mut inside = BTreeSet::new();
    for file in exporting() {
        let text = std::fs::read_to_string(file).expect("it can be read");
        let items = syn::parse_file(&text).expect("Rust").items;
        let functions =
            || items.iter().filter_map(|item| if let syn::Item::Fn(function) = item { Some(function) } else { None });
        let own = functions().filter(|function| !is_exported(function) && is_one_of(function, BOUNDARIES));
        let own: Vec<String> = own.map(|function| format!("{} (", function.sig.ident)).collect();
        let calls = || BOUNDARIES.into_iter().chain(own.iter().map(String::as_str));
        let exported = functions().filter(|function| is_exported(function) && is_one_of(function, calls()));
        inside.extend(exported.map(|function| function.sig.ident.to_string()));
    }
    assert_eq!(inside, declared());
}

/// Returns the symbols that a library exports to programs.
fn symbols(arguments: &[&str], library: &str) -> Option<BTreeSet<String>> {
    let file = library_folder().join(library);
    let Some(listed) = output(Command::new("nm").args(arguments).args(["-g", "--defined-only"]).arg(file)) else {
        skip("exported symbols", "no nm");
        return None;
    };
    let text = printed(&listed);
    Some(text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect())
}

#[test]
fn the_shared_library_exports_the_headers_functions_and_nothing_else() {
    let Some(exported) = symbols(&["-D"], "libcachalot.so") else { return };
    assert_eq!(exported, declared());
}

#[test]
fn the_shared_library_has_a_name_for_the_versions_that_it_can_replace() {
    let library = library_folder().join("libcachalot.so");
    let Some(read) = output(Command::new("readelf").arg("-d").arg(library)) else {
        return skip("SONAME", "no readelf");
    };
    assert!(printed(&read).contains(&format!("[{}]", soname())), "{}", printed(&read));
}

/// `size_of` as the first size of a structure would grow with its next field, and refuse every
/// program that was compiled before.
#[test]
fn the_first_size_of_every_structure_is_a_number() {
    let folder = root().join("ffi/src/c");
    let mut sizes = 0;
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(&path).expect("Rust is text");
                for size in text.split("const FIRST_SIZE: usize = ").skip(1) {
                    let size = size.split(';').next().unwrap_or_default();
                    assert!(size.parse::<usize>().is_ok(), "{}: {size} is no number", path.display());
                    sizes += 1;
                }
            }
        }
    }
    assert!(sizes >= 14, "{sizes}");
}
