//! A single build with all changes of a crate.
//!
//! A copy of the workspace is compiled with every change. The compiler's messages name the refused
//! bytes: the change is left out, or the place is written in another form, until nothing is
//! refused.

use crate::change::{Change, State};
use crate::conditions::Conditions;
use crate::places;
use crate::render::{Form, Part, Rendered, Written, render};
use crate::source::{self, Source};
use crate::switch;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The order for a build.
pub(crate) struct Order<'a> {
    /// The workspace, an absolute path.
    pub(crate) workspace: &'a Path,
    /// The changed package.
    pub(crate) package: &'a str,
    /// Where the copy and the build lie, an absolute path.
    pub(crate) folder: &'a Path,
    /// The test programs besides the package's own unit tests: a package and the name of a target.
    pub(crate) programs: &'a [(String, String)],
    /// Features that the test programs turn on, besides the default ones.
    pub(crate) features: &'a [String],
}

/// A built test program.
pub(crate) struct Built {
    pub(crate) program: PathBuf,
    /// The folder of the package.
    pub(crate) runs_in: PathBuf,
}

/// A file with all places.
struct Rewritten {
    source: Source,
    places: Vec<Written>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    features: BTreeMap<String, Vec<String>>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

/// A line of cargo's output. Only the compiler's messages are read.
#[derive(Deserialize)]
struct Line {
    reason: String,
    message: Option<Message>,
    executable: Option<PathBuf>,
    target: Option<BuiltTarget>,
}

#[derive(Deserialize)]
struct BuiltTarget {
    name: String,
}

#[derive(Deserialize)]
struct Message {
    level: String,
    rendered: Option<String>,
    spans: Vec<Span>,
}

#[derive(Deserialize)]
struct Span {
    file_name: PathBuf,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
    expansion: Option<Box<Expansion>>,
}

/// Where a macro was called.
#[derive(Deserialize)]
struct Expansion {
    span: Span,
}

/// Builds the test programs with every change accepted by the compiler. Returns the changes and the
/// programs.
pub(crate) fn build(order: &Order<'_>) -> Result<(Vec<Change>, Vec<Built>), String> {
    copy(order)?;
    let metadata = metadata(order)?;
    let (root, conditions) = library(order, &metadata)?;
    let sources = source::read(order.workspace, &root, &conditions)?;
    let mut changes = Vec::new();
    let mut files: Vec<Rewritten> = Vec::new();
    for source in sources {
        let mut places = places::of_file(&source.syntax, &conditions);
        places.sort_by_key(|place| (place.bytes.start, std::cmp::Reverse(place.bytes.end)));
        let places = places.into_iter().map(|place| written(place, &source.path, &mut changes)).collect();
        files.push(Rewritten { source, places });
    }
    eprintln!("{} changes in {} files", changes.len(), files.len());
    let own = (order.package.to_owned(), "--lib".to_owned());
    let targets: Vec<_> = std::iter::once(&own).chain(order.programs).collect();
    // What the compiler refuses is found without generating code, and first for the tests of the
    // crate itself.
    for round in 1.. {
        let refused = round_of(order, &root, &mut files, &mut changes, &targets[..1], "check")?.1;
        eprintln!("round {round}: {refused} refused");
        if refused == 0 {
            break;
        }
    }
    let mut programs = Vec::new();
    for target in &targets {
        loop {
            let (built, refused) = round_of(order, &root, &mut files, &mut changes, &[target], "test")?;
            if refused == 0 {
                let runs_in = order.folder.join("tree").join(folder_of(order, &metadata, &target.0)?);
                programs.extend(built.into_iter().map(|program| Built { program, runs_in: runs_in.clone() }));
                break;
            }
            // What was built before lacks these changes no longer: they are never taken.
            eprintln!("{}: {refused} refused", target.1);
        }
    }
    Ok((changes, programs))
}

/// Numbers the changes of a place.
fn written(place: places::Place, path: &Path, changes: &mut Vec<Change>) -> Written {
    let mut numbers = Vec::new();
    for text in &place.texts {
        let state = if place.is_constant { State::Constant } else { State::Built };
        let (line, column) = place.position;
        changes.push(Change { file: path.display().to_string(), line, column, text: text.clone(), state });
        numbers.push(if place.is_constant { 0 } else { changes.len() });
    }
    Written { place, form: Form::Once, numbers }
}

/// Writes the files, compiles, and leaves out the refused changes. Returns the programs and the
/// number of refusals.
fn round_of(
    order: &Order<'_>,
    root: &Path,
    files: &mut [Rewritten],
    changes: &mut [Change],
    targets: &[&(String, String)],
    command: &str,
) -> Result<(Vec<PathBuf>, usize), String> {
    let tree = order.folder.join("tree");
    let mut rendered = BTreeMap::new();
    let prefix = switch::ATTRIBUTES;
    for (index, file) in files.iter().enumerate() {
        let result = render(&file.source.text, &file.places);
        let is_root = file.source.path == root;
        let text = if is_root {
            format!("{prefix}{}{}", result.text, switch::module(changes.len()))
        } else {
            result.text.clone()
        };
        write(&tree.join(&file.source.path), &text)?;
        rendered.insert(file.source.path.clone(), (index, if is_root { prefix.len() } else { 0 }, result));
    }
    let mut programs = Vec::new();
    let mut refused = BTreeSet::new();
    let mut errors = Vec::new();
    for (package, target) in targets {
        let mut cargo = Command::new("cargo");
        cargo.arg(command).args(["--locked", "--message-format=json", "--package", package]);
        cargo.args(if command == "test" { &["--no-run"][..] } else { &["--profile", "test"] });
        if target == "--lib" {
            cargo.arg(target)
        } else {
            cargo.args(["--test", target])
        };
        cargo.current_dir(&tree).env("CARGO_TARGET_DIR", order.folder.join("build"));
        cargo.env("RUSTC_BOOTSTRAP", order.package.replace('-', "_")).env("RUSTFLAGS", "--cap-lints=allow");
        let output = cargo.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo: {error}"))?;
        for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let Ok(line) = serde_json::from_slice::<Line>(line) else { continue };
            if line.reason == "compiler-artifact" {
                let name = line.target.map(|target| target.name);
                let is_asked = target == "--lib" || name.as_ref() == Some(target);
                programs.extend(line.executable.filter(|_| is_asked));
            }
            let Some(message) = line.message.filter(|message| message.level == "error") else { continue };
            let parts = message_parts(&message, &rendered);
            if parts.is_empty() && !message.spans.is_empty() {
                errors.push(message.rendered.unwrap_or_default());
            }
            refused.extend(parts);
        }
        if !output.status.success() && refused.is_empty() {
            return Err(format!("the compiler refuses more than changes:\n{}", errors.join("\n")));
        }
    }
    for &(file, part) in &refused {
        leave_out(&mut files[file].places, part, changes);
    }
    Ok((programs, refused.len()))
}

/// Returns the innermost parts under a message: of the main bytes, or else of any.
fn message_parts(message: &Message, files: &BTreeMap<PathBuf, (usize, usize, Rendered)>) -> Vec<(usize, Part)> {
    for is_primary in [true, false] {
        let spans = message.spans.iter().filter(|span| span.is_primary == is_primary);
        let parts: Vec<_> = spans.filter_map(|span| innermost(span, files)).collect();
        if !parts.is_empty() {
            return parts;
        }
    }
    Vec::new()
}

fn innermost(span: &Span, files: &BTreeMap<PathBuf, (usize, usize, Rendered)>) -> Option<(usize, Part)> {
    let Some((file, before, rendered)) = files.get(&span.file_name) else {
        return innermost(&span.expansion.as_ref()?.span, files);
    };
    let (start, end) = (span.byte_start.checked_sub(*before)?, span.byte_end.checked_sub(*before)?);
    let around = rendered.parts.iter().filter(|(bytes, _)| bytes.start <= start && end <= bytes.end);
    let part = around.min_by_key(|(bytes, part)| (bytes.len(), matches!(part, Part::Place(_))))?;
    Some((*file, part.1))
}

/// Leaves out a change, or writes a place in the next form.
fn leave_out(places: &mut [Written], part: Part, changes: &mut [Change]) {
    let (index, of_place) = match part {
        Part::Change(index, change) => (index, change..change + 1),
        Part::Place(index) => (index, 0..places[index].numbers.len()),
    };
    let written = &mut places[index];
    // The copies of a place are typed as the source is.
    if written.form == Form::Once && written.place.shape.has_copies() {
        written.form = Form::Copies;
        return;
    }
    for change in of_place {
        let number = std::mem::take(&mut written.numbers[change]);
        if number != 0 {
            changes[number - 1].state = State::Unviable;
        }
    }
}

fn metadata(order: &Order<'_>) -> Result<Metadata, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--no-deps", "--format-version=1", "--offline"]).current_dir(order.workspace);
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

impl Metadata {
    fn package(&self, name: &str) -> Result<&Package, String> {
        let package = self.packages.iter().find(|package| package.name == name);
        package.ok_or_else(|| format!("the workspace has no package {name}"))
    }
}

/// Returns the folder of a package, relative to the workspace.
fn folder_of(order: &Order<'_>, metadata: &Metadata, package: &str) -> Result<PathBuf, String> {
    let manifest = &metadata.package(package)?.manifest_path;
    let relative = manifest.strip_prefix(order.workspace).map_err(|error| error.to_string())?;
    Ok(relative.with_file_name(""))
}

/// Returns the root of the package's library, relative to the workspace, and the conditions of the
/// build.
fn library(order: &Order<'_>, metadata: &Metadata) -> Result<(PathBuf, Conditions), String> {
    let package = metadata.package(order.package)?;
    let library = package.targets.iter().find(|target| target.kind.iter().any(|kind| kind.contains("lib")));
    let root = &library.ok_or("the package has no library")?.src_path;
    let root = root.strip_prefix(order.workspace).map_err(|error| error.to_string())?.to_owned();
    let mut features = HashSet::new();
    let mut asked = [vec!["default".to_owned()], order.features.to_vec()].concat();
    while let Some(name) = asked.pop() {
        asked.extend(package.features.get(&name).cloned().unwrap_or_default());
        features.insert(name);
    }
    Ok((root, Conditions { features }))
}

/// Copies the files known to git into the folder.
fn copy(order: &Order<'_>) -> Result<(), String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(order.workspace);
    let output = git.output().map_err(|error| format!("git: {error}"))?;
    for path in output.stdout.split(|&byte| byte == 0).filter(|path| !path.is_empty()) {
        let path = Path::new(std::str::from_utf8(path).map_err(|error| error.to_string())?);
        let (from, to) = (order.workspace.join(path), order.folder.join("tree").join(path));
        let Ok(data) = std::fs::read(&from) else { continue };
        if std::fs::read(&to).is_ok_and(|old| old == data) {
            continue;
        }
        let folder = to.parent().ok_or("a file is in a folder")?;
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        // With its permissions: some tests run scripts.
        std::fs::copy(&from, &to).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(())
}

/// Writes a file if the text has changed: the compiler goes by the time.
fn write(path: &Path, text: &str) -> Result<(), String> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
