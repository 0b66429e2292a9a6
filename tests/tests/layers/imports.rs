//! Finds the imports between the files of a crate.

use super::modules::{self, Contents, Module, Modules, Read};
use super::paths::Names;
use std::collections::BTreeMap;

/// The imports of a crate, without duplicates: the importing file, the imported file, and the first
/// path found. A file is named by its module path with slashes; the crate root has the empty name.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    /// All files of the crate except the root.
    pub(crate) files: Vec<String>,
    /// The imports: from, to, path.
    pub(crate) arrows: BTreeMap<(String, String), String>,
}

/// Finds the imports of a crate.
pub(crate) fn of(read: Read<'_>) -> Imports {
    let modules = modules::read(read);
    let files = modules.iter().filter(|(module, contents)| **module == contents.file && !module.is_empty());
    let mut imports = Imports { files: files.map(|(module, _)| module.join("/")).collect(), ..Imports::default() };
    for (module, contents) in &modules {
        let named = contents.named.iter().map(|(named, is_public)| (&named.path, *is_public));
        for (path, is_public) in named.chain(contents.paths.iter().map(|path| (path, false))) {
            let Some((base, behind)) = base(&modules, module, path) else { continue };
            // What a module shows of its own folder is a sign on its door, and not an import.
            if is_public && base == *module && modules.contains_key(&child(module, behind)) {
                continue;
            }
            let Some(target) = target(&modules, &base, behind, DEEPEST) else { continue };
            if target != contents.file {
                let arrow = (contents.file.join("/"), target.join("/"));
                imports.arrows.entry(arrow).or_insert_with(|| path.join("::"));
            }
        }
    }
    imports
}

/// Maximum number of renames followed for a name.
const DEEPEST: usize = 16;

fn child(module: &Module, names: &[String]) -> Module {
    module.iter().chain(names.first()).cloned().collect()
}

/// Returns the module in which a path of `module` starts, and the remaining names. `None` for a
/// path out of the crate.
fn base<'a>(modules: &Modules, module: &Module, path: &'a Names) -> Option<(Module, &'a [String])> {
    let (first, names) = path.split_first()?;
    match first.as_str() {
        "crate" => Some((Module::new(), names)),
        "self" => Some((module.clone(), names)),
        "super" => {
            let mut base = module.clone();
            base.pop();
            let mut names = names;
            while let Some((next, behind)) = names.split_first().filter(|(next, _)| *next == "super") {
                debug_assert_eq!(next, "super");
                base.pop();
                names = behind;
            }
            Some((base, names))
        }
        _ => modules.contains_key(&child(module, path)).then(|| (module.clone(), path.as_slice())),
    }
}

/// Finds the file that defines the item at the end of a path.
fn target(modules: &Modules, base: &Module, names: &[String], depth: usize) -> Option<Module> {
    let contents = modules.get(base)?;
    let Some((first, behind)) = names.split_first().filter(|_| depth > 0) else {
        return Some(contents.file.clone());
    };
    let inner = child(base, names);
    if modules.contains_key(&inner) {
        return target(modules, &inner, behind, depth);
    }
    if contents.defined.contains(first) {
        return Some(contents.file.clone());
    }
    let other = contents.named.iter().find(|(named, _)| named.name == *first);
    let Some((other, _)) = other else { return Some(globbed(modules, base, contents, first, depth)) };
    let (base, names) = self::base(modules, base, &other.path)?;
    target(modules, &base, names, depth - 1)
}

/// Finds the file that defines a name imported by a glob, else the module's own file: a macro may
/// define the name.
fn globbed(modules: &Modules, base: &Module, contents: &Contents, name: &String, depth: usize) -> Module {
    let globs = contents.named.iter().filter(|(named, _)| named.name == "*");
    let mut found = globs.filter_map(|(glob, _)| {
        let path = glob.path[..glob.path.len() - 1].to_vec();
        let (base, names) = self::base(modules, base, &path)?;
        let shown = target_module(modules, &base, names)?;
        let has =
            modules[&shown].defined.contains(name) || modules[&shown].named.iter().any(|(of, _)| of.name == *name);
        if has { target(modules, &shown, std::slice::from_ref(name), depth - 1) } else { None }
    });
    found.next().unwrap_or_else(|| contents.file.clone())
}

/// Returns the module at the end of a path, if every name is a module.
fn target_module(modules: &Modules, base: &Module, names: &[String]) -> Option<Module> {
    let module: Module = base.iter().chain(names).cloned().collect();
    modules.contains_key(&module).then_some(module)
}
