//! The signatures of the exported functions agree with NVIDIA's own `cuda.h`, as far as a call shows.
//!
//! Needs the header's folder in `CACHALOT_CUDA_H_DIR`; `scripts/setup/cuda_header.sh` fetches a pinned version.

use crate::rows;
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
        "u64" | "usize" | "CuDevicePtr" | "CuMemHandle" => ('I', 8),
        "CuContext" | "CuStream" | "CuModule" | "CuFunction" | "CuGraph" | "CuGraphNode" | "CuGraphExec"
        | "CuMemoryPool" => ('P', 0),
        "CuIpcMemHandle" => ('S', 64),
        "CuMemAccessDesc" => ('S', 12),
        "CuMemAllocationProp" => ('S', 32),
        "CuGraphEdgeData" => ('S', 8),
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

#[test]
fn signatures_are_the_headers() {
    let Ok(folder) = std::env::var("CACHALOT_CUDA_H_DIR") else {
        // Written to stderr directly: the test harness would swallow the line of a test that passes.
        let _ = writeln!(std::io::stderr(), "skipped: signatures against cuda.h (CACHALOT_CUDA_H_DIR is not set)");
        return;
    };
    let header = std::fs::read_to_string(Path::new(&folder).join("cuda.h")).expect("the header");
    // The header has the newest version of a function under the plain name, and the older ones under `INTERNAL`.
    let (mut newest, mut older) = (String::from(CHECKS), format!("#define __CUDA_API_VERSION_INTERNAL\n{CHECKS}"));
    for (name, types) in rows() {
        let name = name.strip_suffix("_ptsz").unwrap_or(name);
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
