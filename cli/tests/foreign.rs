//! Files that people have and that are no snapshot: read as far as they can be, and else named.

use crate::common::{Finished, cachalot, folder, gzip, write};
use std::path::Path;

/// Runs a command on a file that it refuses. Returns the line without the name of the file.
fn refused(command: &str, file: &Path) -> String {
    let finished: Finished = cachalot([Path::new(command), file]);
    assert_eq!(
        (finished.status, finished.output.as_str()),
        (2, ""),
        "{command} {}: {}",
        file.display(),
        finished.errors
    );
    assert_eq!(finished.errors.lines().count(), 1, "{}", finished.errors);
    let shown = file.display().to_string();
    finished.errors.strip_prefix(&shown).unwrap_or_else(|| panic!("{}", finished.errors)).trim_end().to_owned()
}

#[test]
fn a_file_without_memory_is_named_by_every_command() {
    let folder = folder("named");
    let named: [(&str, &[u8], &str); 7] = [
        ("pointer.pickle", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n", "Git LFS"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a picture (PNG)"),
        ("model.pt", b"PK\x03\x04\0\0\x08\x08\0\0archive/data.pkl", "a zip archive, as torch.save() writes it"),
        ("azure.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,4808,10\n", "a table of requests"),
        (
            "mooncake.jsonl",
            b"{\"timestamp\": 0, \"input_length\": 6758, \"hash_ids\": [0, 1]}\n",
            "requests to a language model",
        ),
        (
            "error.txt",
            b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
            "the text of an error",
        ),
        ("dump.json", br#"{"General": {"API": "Vulkan"}, "Total": {"BlockCount": 1, "BlockBytes": 2}}"#, "Vulkan"),
    ];
    for (name, content, what) in named {
        for file in [write(&folder, name, content), write(&folder, &format!("{name}.gz"), gzip(content))] {
            for command in ["inspect", "replay", "view", "plan", "tune"] {
                let said = refused(command, &file);
                assert!(said.contains(what), "{command} {}: {said}", file.display());
            }
        }
    }
}

#[test]
fn what_the_planner_reads_is_sent_to_the_planner() {
    let folder = folder("planner");
    for (name, content) in [
        ("table.csv", "id,lower,upper,size\n1,0,2,512\n"),
        ("program.json", r#"{"values": [{"name": "x", "size": 1}], "operators": [{"inputs": [], "outputs": [{"value": "x"}]}]}"#),
    ] {
        let file = write(&folder, name, content);
        for command in ["inspect", "replay", "view"] {
            let said = refused(command, &file);
            assert!(said.contains("for `cachalot plan`"), "{command}: {said}");
        }
        assert_eq!(cachalot([Path::new("plan"), &file]).status, 0);
    }
}
