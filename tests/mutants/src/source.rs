//! The files of a crate, followed from the root by `mod`.

use crate::conditions::Conditions;
use std::path::{Path, PathBuf};
use syn::{Expr, ExprLit, Item, Lit, Meta};

/// A file of the crate.
pub(crate) struct Source {
    /// Relative to the workspace.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) syntax: syn::File,
}

/// Reads the files of the crate whose first file is `root`, relative to `workspace`. Modules whose
/// `cfg` attributes do not hold under `conditions` are left out.
pub(crate) fn read(workspace: &Path, root: &Path, conditions: &Conditions) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    let folder = root.parent().ok_or("the root of a crate is in a folder")?;
    follow(workspace, root.to_owned(), folder, conditions, &mut sources)?;
    Ok(sources)
}

/// Reads a file and the declared modules, which are in `folder`.
fn follow(
    workspace: &Path,
    path: PathBuf,
    folder: &Path,
    conditions: &Conditions,
    sources: &mut Vec<Source>,
) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(workspace.join(&path)).map_err(|error| told(&error))?;
    let syntax = syn::parse_file(&text).map_err(|error| told(&error))?;
    if !conditions.hold(&syntax.attrs) {
        return Ok(());
    }
    let mut modules = Vec::new();
    for item in &syntax.items {
        let Item::Mod(module) = item else { continue };
        if module.content.is_some() || !conditions.hold(&module.attrs) {
            continue;
        }
        let name = module.ident.to_string();
        let given = module.attrs.iter().find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        });
        let file = given.map_or_else(|| folder.join(format!("{name}.rs")), |given| path.with_file_name(given));
        let inner = folder.join(&name);
        let file = if workspace.join(&file).exists() { file } else { inner.join("mod.rs") };
        modules.push((file, inner));
    }
    sources.push(Source { path, text, syntax });
    for (file, inner) in modules {
        follow(workspace, file, &inner, conditions, sources)?;
    }
    Ok(())
}
