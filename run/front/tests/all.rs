//! Tests of the built library: the needs and the exports of the file, and the signatures of the functions.

mod file;
mod header;

/// The rows of the exported functions: name, and the types of the parameters as written in the table.
fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    let text = include_str!("../src/exports.rs").split_once("\nexports! {\n").expect("the table").1;
    let rows = text.split(';').filter_map(|row| {
        let row = row.split_once("=>").map_or(row, |(signature, _)| signature);
        let of_row = |line: &&str| !line.trim_start().starts_with("//") && !line.ends_with(['{', '}']);
        let signature = row.lines().filter(of_row).collect::<Vec<_>>().join(" ");
        let (name, parameters) = signature.trim().trim_end_matches(')').split_once('(')?;
        let types = parameters.split(',').filter_map(|parameter| parameter.split_once(':'));
        Some((&*name.to_owned().leak(), types.map(|(_, ty)| &*ty.trim().to_owned().leak()).collect()))
    });
    rows.collect()
}
