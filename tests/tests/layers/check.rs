//! Checks imports against layers: upward and sideways imports, circles, and modules without a
//! layer.

use super::document::Layers;
use super::imports::Imports;
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::{BTreeMap, BTreeSet};

/// Lists all violations, one per line.
pub(crate) fn check(layers: &Layers, imports: &Imports) -> Vec<String> {
    let mut wrong = places(layers, imports);
    wrong.extend(directions(layers, imports));
    wrong.extend(circles(layers, imports));
    wrong
}

/// Returns the module of a file that has a layer: the top-level module, or in a folder whose
/// modules are listed one by one, the module in the folder.
fn room<'a>(layers: &Layers, file: &'a str) -> &'a str {
    let Some((top, rest)) = file.split_once('/') else { return file };
    let is_listed_by_module =
        layers.lines.iter().flatten().any(|name| name.split_once('/').is_some_and(|(folder, _)| folder == top));
    let inner = rest.split_once('/').map_or(rest, |(inner, _)| inner);
    if is_listed_by_module { &file[..top.len() + 1 + inner.len()] } else { top }
}

/// Lists modules without a layer or with two, and layer names without a module.
fn places(layers: &Layers, imports: &Imports) -> Vec<String> {
    let rooms: BTreeSet<&str> = imports.files.iter().map(|file| room(layers, file)).collect();
    let mut listed = BTreeSet::new();
    let mut wrong = Vec::new();
    for name in layers.lines.iter().flatten().map(String::as_str) {
        if !listed.insert(name) {
            wrong.push(format!("{name} is listed twice"));
        }
    }
    wrong.extend(rooms.difference(&listed).map(|name| format!("{name} is in no layer")));
    wrong.extend(listed.difference(&rooms).map(|name| format!("{name} is listed, and is no module")));
    wrong
}

/// Lists imports from a higher layer or from another module of the layer. The crate root is above
/// all layers.
fn directions(layers: &Layers, imports: &Imports) -> Vec<String> {
    let depths =
        layers.lines.iter().enumerate().flat_map(|(depth, line)| line.iter().map(move |name| (name, depth + 1)));
    let mut depths: BTreeMap<&str, usize> = depths.map(|(name, depth)| (name.as_str(), depth)).collect();
    depths.insert("", 0);
    let mut wrong = Vec::new();
    for ((from, to), path) in &imports.arrows {
        let (Some(above), Some(below)) = (depths.get(room(layers, from)), depths.get(room(layers, to))) else {
            continue;
        };
        let direction = match above.cmp(below) {
            _ if room(layers, from) == room(layers, to) => continue,
            std::cmp::Ordering::Less => continue,
            std::cmp::Ordering::Equal => "sideways",
            std::cmp::Ordering::Greater => "upward",
        };
        let to = if to.is_empty() { "the crate's root" } else { to };
        wrong.push(format!("{from} imports {to} {direction}: {path}"));
    }
    wrong
}

/// Returns whether one file is the module file of the folder of another. A module file may call the
/// files in its folder, and the reverse.
fn is_folder_of(folder: &str, file: &str) -> bool {
    file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/') || folder.is_empty())
}

/// Lists circles of imports that are not allowed, and allowed circles that no longer exist.
fn circles(layers: &Layers, imports: &Imports) -> Vec<String> {
    let arrows = imports.arrows.keys().map(|(from, to)| (from.as_str(), to.as_str()));
    let arrows = arrows.filter(|(from, to)| !is_folder_of(from, to) && !is_folder_of(to, from));
    let graph: DiGraphMap<&str, ()> = DiGraphMap::from_edges(arrows);
    let circles = tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1).map(|mut files| {
        files.sort_unstable();
        files
    });
    let found: BTreeSet<Vec<&str>> = circles.collect();
    let allowed = layers.circles.iter().map(|files| files.iter().map(String::as_str).collect());
    let allowed: BTreeSet<Vec<&str>> = allowed.collect();
    let circle = |files: &Vec<&str>| {
        let inside = |(from, to): (&str, &str)| files.contains(&from) && files.contains(&to);
        let arrows = imports.arrows.iter().filter(|((from, to), _)| inside((from, to)));
        let arrows: Vec<_> = arrows.map(|((from, _), path)| format!("{from} by {path}")).collect();
        format!("a circle: {} ({})", files.join(" "), arrows.join(", "))
    };
    let mut wrong: Vec<_> = found.difference(&allowed).map(circle).collect();
    wrong.extend(allowed.difference(&found).map(|files| format!("no such circle any more: {}", files.join(" "))));
    let apart = found
        .intersection(&allowed)
        .filter(|files| files.iter().any(|file| room(layers, file) != room(layers, files[0])));
    wrong.extend(apart.map(|files| format!("a circle of two modules: {}", files.join(" "))));
    wrong
}
