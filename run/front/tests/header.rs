//! The signatures of the exported functions agree with NVIDIA's own `cuda.h` in the kind and size of each parameter, and no function that
//! touches memory is missing.
//!
//! Needs the header's folder in `CACHALOT_CUDA_H_DIR`; `scripts/setup/cuda_header.sh` fetches a pinned version.

use crate::rows;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Declares `is<KIND, SIZE>(type)` for a parameter: I an integer or an enumeration, P a pointer with the size of the
/// target (0: any target), S a structure.
const CHECKS: &str = r"
#include <cuda.h>
#include <cstddef>
#include <type_traits>
template <class T> constexpr std::size_t room() {
    if constexpr (std::is_void_v<T>) return 0; else return sizeof(T);
}
template <char kind, std::size_t size, class T> constexpr bool is() {
    if constexpr (kind == 'P') {
        if constexpr (!std::is_pointer_v<T>) return false;
        else if constexpr (size == 0) return true;
        else return room<std::remove_pointer_t<T>>() == size;
    }
    else if constexpr (kind == 'I') return (std::is_integral_v<T> || std::is_enum_v<T>) && sizeof(T) == size;
    else return std::is_class_v<T> && sizeof(T) == size;
}
template <class... T> struct types {};
template <class... T> types<T...> parameters(CUresult (*)(T...));
template <char, std::size_t> struct one {};
template <class A, class B> struct match : std::false_type {};
template <char... kind, std::size_t... size, class... T>
struct match<types<one<kind, size>...>, types<T...>>
    : std::bool_constant<(is<kind, size, T>() && ... && true)> {};
";

/// Returns kind and size of a parameter's type in the table. The size of a pointer is the size of the target.
fn class(ty: &str) -> (char, usize) {
    if let Some(there) = ty.strip_prefix("*mut ").or_else(|| ty.strip_prefix("*const ")) {
        return match there {
            // Structures that the library only passes on, and memory of any type.
            "c_void" => ('P', 0),
            "c_char" => ('P', 1),
            other if class(other).0 == 'P' => ('P', 8),
            other => ('P', class(other).1),
        };
    }
    match ty {
        "c_int" | "c_uint" | "u32" | "CuDevice" | "CuCaptureMode" | "CuPointerAttribute" | "CuMemHandleType" => {
            ('I', 4)
        }
        "u8" => ('I', 1),
        "u16" => ('I', 2),
        "u64" | "usize" | "CuDevicePtr" | "CuMemHandle" => ('I', 8),
        "CuContext" | "CuStream" | "CuModule" | "CuFunction" | "CuGraph" | "CuGraphNode" | "CuGraphExec"
        | "CuMemoryPool" | "CuGreenContext" => ('P', 0),
        "CuIpcMemHandle" => ('S', 64),
        "CuMemAccessDesc" => ('S', 12),
        "CuMemAllocationProp" => ('S', 32),
        "CuGraphEdgeData" | "CuMemLocation" => ('S', 8),
        other => panic!("the test does not know the type {other}"),
    }
}

/// Compiles a program without output. Returns the compiler's messages.
fn compile(folder: &str, text: &str) -> Result<(), String> {
    let mut command = Command::new("c++");
    command.args(["-std=c++17", "-fsyntax-only", "-x", "c++"]);
    command.arg("-I").arg(folder).arg("-").stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a C++ compiler");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("the compiler reads");
    let output = child.wait_with_output().expect("the compiler ends");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Returns the folder and the text of the header. Without the header, prints that the test of `what` is left out.
fn header(what: &str) -> Option<(String, String)> {
    let Ok(folder) = std::env::var("CACHALOT_CUDA_H_DIR") else {
        // Written to stderr directly: the test harness would swallow the line of a test that passes.
        let _ = writeln!(std::io::stderr(), "skipped: {what} against cuda.h (CACHALOT_CUDA_H_DIR is not set)");
        return None;
    };
    let header = std::fs::read_to_string(Path::new(&folder).join("cuda.h")).expect("the header");
    Some((folder, header))
}

/// Returns the symbols of the functions in the header that `wanted` names, with the variants for programs whose stream 0 is the
/// thread's own.
fn symbols(header: &str, wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    // `#define cuMemcpyHtoD __CUDA_API_PTDS(cuMemcpyHtoD_v2)`: the symbol of the newest version of a name.
    let mut newest: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut symbols = BTreeSet::new();
    for line in header.lines().map(str::trim_start) {
        if let Some((name, symbol)) = line.strip_prefix("#define ").and_then(|line| line.split_once(' ')) {
            for (call, ending) in [("__CUDA_API_PTDS(", "_ptds"), ("__CUDA_API_PTSZ(", "_ptsz"), ("cu", "")] {
                if let Some(rest) = symbol.trim_start().strip_prefix(call) {
                    let symbol = if ending.is_empty() { symbol.trim() } else { rest.trim_end().trim_end_matches(')') };
                    newest.insert(name, (symbol, ending));
                }
            }
        } else if let Some(name) = line.strip_prefix("#undef ") {
            // What follows declares the older versions.
            newest.remove(name.trim_end());
        } else if let Some((_, line)) = line.split_once("CUresult CUDAAPI ")
            && let Some((name, _)) = line.split_once('(')
            && wanted(name)
        {
            let (symbol, ending) = newest.get(name).copied().unwrap_or((name, ""));
            symbols.extend([symbol.to_owned(), format!("{symbol}{ending}")]);
        }
    }
    symbols
}

#[test]
fn every_function_of_the_header_that_touches_memory_has_a_row() {
    const FAMILIES: [&str; 12] = [
        "cuMemcpy",
        "cuMemset",
        "cuMemPrefetch",
        "cuMemDiscard",
        "cuMemBatchDecompress",
        "cuLaunch",
        "cuGraphLaunch",
        "cuGraphUpload",
        "cuStreamWriteValue",
        "cuStreamWaitValue",
        "cuStreamBatchMemOp",
        "cuStreamAttachMem",
    ];
    let Some((_, header)) = header("functions that touch memory") else { return };
    // A function of the host touches no memory of a device.
    let touches = |name: &str| name != "cuLaunchHostFunc" && FAMILIES.iter().any(|family| name.starts_with(family));
    let symbols = symbols(&header, touches);
    let known = ["cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds", "cuLaunchKernel_ptsz", "cuLaunchGrid"];
    assert!(known.iter().all(|&known| symbols.contains(known)), "{symbols:?}");
    let rows: BTreeSet<String> = rows().into_iter().map(|(name, _)| name.to_owned()).collect();
    let missing: Vec<&String> = symbols.difference(&rows).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn signatures_are_the_headers() {
    let Some((folder, header)) = header("signatures") else { return };
    // The header has the newest version of a function under the plain name, and the older ones under `INTERNAL`.
    let (mut newest, mut older) = (String::from(CHECKS), format!("#define __CUDA_API_VERSION_INTERNAL\n{CHECKS}"));
    for (name, types) in rows() {
        let name = name.strip_suffix("_ptsz").or(name.strip_suffix("_ptds")).unwrap_or(name);
        let plain = name.rsplit_once("_v").map_or(name, |(plain, _)| plain);
        let renamed = header.lines().any(|line| {
            line.trim_start().starts_with(&format!("#define {plain} "))
                && line.contains(name)
                && !line.contains(&format!("{name}_"))
        });
        let text = if renamed { &mut newest } else { &mut older };
        let _ = writeln!(text, "{}", check(if renamed { plain } else { name }, &types));
    }
    compile(&folder, &newest).unwrap();
    compile(&folder, &older).unwrap();
    // The check notices a wrong width.
    let wrong = format!("{CHECKS}{}", check("cuMemAllocManaged", &["*mut CuDevicePtr", "c_uint", "c_uint"]));
    assert!(compile(&folder, &wrong).is_err_and(|message| message.contains("cuMemAllocManaged")));
}

/// Returns the check of a function's parameters.
fn check(name: &str, types: &[&str]) -> String {
    let classes = types.iter().map(|ty| class(ty)).map(|(kind, size)| format!("one<'{kind}', {size}>"));
    let classes = classes.collect::<Vec<_>>().join(", ");
    format!("static_assert(match<types<{classes}>, decltype(parameters({name}))>::value, \"{name}\");")
}
