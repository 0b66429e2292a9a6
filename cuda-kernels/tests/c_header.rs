//! Tests of `cachalot_kernels.h` in C11, C17 and C++17: the header compiles without a warning, and
//! the header's pattern is the pattern of the kernels.

use cachalot_kernels::Life;
use std::path::Path;
use std::process::Command;

/// A C program for the pattern of two lives and the shape of a few launches.
const PROGRAM: &str = r#"
#include "cachalot_kernels.h"
#include <stdio.h>
int main(void) {
  cachalot_kernel_arguments a;
  unsigned offset;
  for (offset = 0; offset < 20; ++offset) {
    printf("%u %u\n", (unsigned)cachalot_kernel_pattern(17, 4, offset), (unsigned)cachalot_kernel_pattern(0, 0, offset));
  }
  cachalot_kernel_verify(&a, 8, 1u << 30, 3, 4, 16);
  printf("%u %u %d\n", a.groups, a.threads, *(uint64_t *)a.parameters[1] == 1u << 30 && *(uint64_t *)a.parameters[4] == 16);
  cachalot_kernel_verify_many(&a, 64, 300, 16);
  printf("%u %u %d\n", a.groups, a.threads, *(uint64_t *)a.parameters[1] == 300 && *(uint64_t *)a.parameters[2] == 16);
  printf("%u\n", (unsigned)sizeof(cachalot_kernel_row));
  cachalot_kernel_hold(&a, 5);
  printf("%u %u %d\n", a.groups, a.threads, *(uint64_t *)a.parameters[0] == 5);
  return 0;
}
"#;

/// Returns the program's output, built as `language` by the standard `standard`.
fn output(compiler: &str, language: &str, standard: &str) -> Option<String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join(format!("{standard}.txt")), folder.join(format!("{standard}.bin")));
    std::fs::write(&source, PROGRAM).expect("the test's folder can be written");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let built = Command::new(compiler)
        .args(["-x", language, &format!("-std={standard}"), "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg("-I")
        .arg(include)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status();
    match built {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "skipped: cachalot_kernels.h as {standard} (no {compiler})");
            return None;
        }
        built => assert!(built.expect("the compiler runs").success(), "{standard}"),
    }
    let ran = Command::new(&program).output().expect("the program runs");
    Some(String::from_utf8(ran.stdout).expect("UTF-8"))
}

#[test]
fn the_header_compiles_and_its_pattern_is_the_kernels() {
    let lives = [Life { block: 17, generation: 4 }, Life { block: 0, generation: 0 }];
    let rows = (0..20).map(|offset| format!("{} {}\n", lives[0].byte(offset), lives[1].byte(offset)));
    let expected = rows.collect::<String>() + "2048 256 1\n300 256 1\n40\n1 1 1\n";
    for (compiler, language, standard) in [("cc", "c", "c11"), ("cc", "c", "c17"), ("c++", "c++", "c++17")] {
        if let Some(output) = output(compiler, language, standard) {
            assert_eq!(output, expected, "{standard}");
        }
    }
}
