//! Generates the lists of all settings from the library, `docs/configuration.md` and the
//! documentation of `cachalot_core::config`, and the sentence of `cachalot.h` with the policies.
//!
//! To rewrite the lists:
//! `CACHALOT_WRITE_DOCS=1 cargo test -p cachalot-tests --test house configuration_page`.

use cachalot_core::Config;
use cachalot_core::config::{ConfigError, PLANNED, SettingDefault, SettingReference};
use cachalot_policies::{NAMES as POLICIES, settings};
use cachalot_tests::generated;
use std::fmt::Write as _;
use std::path::Path;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
const BEGIN: &str = "<!-- The tables are generated: see tests/tests/configuration_page.rs. -->\n";
const END: &str = "<!-- End of the generated tables. -->\n";

/// The table in the documentation of `cachalot_core::config`.
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../core/src/config/settings.md");

/// The header, and the lines around its sentence with the policies.
const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../include/cachalot.h");
const POLICIES_BEGIN: &str =
    " * The options of an allocator. CACHALOT_OPTIONS_INIT selects every device and the default settings.\n *\n";
const POLICIES_END: &str = " * Other settings follow after commas";
/// Maximum number of columns of a line in the header.
const HEADER_COLUMNS: usize = 100;

fn parse(policy: &str, key: &str, value: &str) -> Result<Config, ConfigError> {
    let policy = if key == "policy" { String::new() } else { format!("policy:{policy},") };
    cachalot_policies::parse(&format!("{policy}{key}:{value}"))
}

/// Returns the policies with the key: policies without a fallback, or else `planned`.
fn policies(setting: &SettingReference) -> Vec<&'static str> {
    let has =
        |policy: &&str| !matches!(parse(policy, setting.key, setting.example), Err(ConfigError::OtherPolicy { .. }));
    let plain: Vec<_> = POLICIES.into_iter().filter(|&policy| policy != PLANNED).filter(has).collect();
    if plain.is_empty() { vec![PLANNED] } else { plain }
}

/// Returns the parser's description of the values that a key accepts.
fn accepted(setting: &SettingReference) -> String {
    setting
        .accepted(cachalot_policies::POLICIES)
        .unwrap_or_else(|| panic!("{}: every value is accepted", setting.key))
        .to_string()
}

fn heading(policies: &[&str]) -> String {
    if policies.len() + 1 == POLICIES.len() {
        return "Every policy".to_owned();
    }
    policies.iter().map(|policy| format!("`{policy}`")).collect::<Vec<_>>().join(" and ")
}

fn default(setting: &SettingReference) -> String {
    match setting.default {
        SettingDefault::Value(value) => format!("`{value}`"),
        SettingDefault::Unset(meaning) => meaning.to_owned(),
    }
}

fn row(setting: &SettingReference) -> String {
    let default = default(setting);
    let SettingReference { key, example, effect, .. } = setting;
    format!("| `{key}` | {} | {default} | `{example}` | {effect} |\n", accepted(setting))
}

/// Builds the tables: one per set of policies with common keys, the largest set first.
fn tables() -> String {
    let mut groups: Vec<(Vec<&str>, String)> = Vec::new();
    for setting in &settings() {
        let policies = policies(setting);
        let row = row(setting);
        match groups.iter_mut().find(|(found, _)| *found == policies) {
            Some((_, rows)) => rows.push_str(&row),
            None => groups.push((policies, row)),
        }
    }
    groups.sort_by_key(|(policies, _)| {
        let first = POLICIES.iter().position(|policy| *policy == policies[0]);
        (std::cmp::Reverse(policies.len()), first)
    });
    groups.iter().fold(String::new(), |mut text, (policies, rows)| {
        let _ = write!(
            text,
            "\n### {}\n\n| key | accepted | default | example | effect |\n|---|---|---|---|---|\n{rows}",
            heading(policies)
        );
        text
    })
}

/// Builds one table of all settings, sorted by key.
fn table() -> String {
    let mut text = String::from("| key | policies | accepted | default | effect |\n|---|---|---|---|---|\n");
    for setting in &settings() {
        let policies = policies(setting);
        let SettingReference { key, effect, .. } = setting;
        let (accepted, default) = (accepted(setting), default(setting));
        let heading = heading(&policies).to_lowercase();
        let _ = writeln!(text, "| `{key}` | {heading} | {accepted} | {default} | {effect} |");
    }
    text
}

/// Wraps a text to the lines of a C comment.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let mut line = format!(" *{indent}");
    for word in text.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > HEADER_COLUMNS {
            let _ = writeln!(lines, "{line}");
            line = format!(" *{indent}");
        }
        line.push(' ');
        line.push_str(word);
    }
    lines + &line + "\n"
}

#[test]
fn the_module_s_documentation_has_the_library_s_settings() {
    generated::assert_current(Path::new(MODULE), &table());
}

/// Builds the header's sentence with the policies, in the order of the library.
fn sentence() -> String {
    let [default, others @ .., last] = &POLICIES[..] else { panic!("there are several policies") };
    let others = others.join(", ");
    wrapped(&format!("The setting `policy` selects a policy: {default} (the default), {others} or {last}."), "")
}

#[test]
fn the_header_names_the_library_s_policies() {
    generated::assert_part_current(Path::new(HEADER), POLICIES_BEGIN, POLICIES_END, &sentence());
}

#[test]
fn a_setting_names_the_policies_whose_strings_may_have_it() {
    for setting in &settings() {
        assert_eq!(
            setting.policies(cachalot_policies::POLICIES).collect::<Vec<_>>(),
            policies(setting),
            "{}",
            setting.key
        );
    }
}

#[test]
fn the_page_has_the_library_s_settings() {
    generated::assert_part_current(Path::new(PAGE), BEGIN, END, &(tables() + "\n"));
}

#[test]
fn the_defaults_are_those_of_the_parser() {
    for setting in &settings() {
        let policy = policies(setting)[0];
        let without = cachalot_policies::parse(&format!("policy:{policy}")).expect("a policy");
        let with = |value| {
            let parsed = parse(policy, setting.key, value);
            parsed.unwrap_or_else(|error| panic!("{}: {error}", setting.key))
        };
        if let SettingDefault::Value(value) = setting.default {
            assert_eq!(with(value), without, "{}", setting.key);
            assert!(
                setting.example != value || setting.key == "backend",
                "{}: the example is the default",
                setting.key
            );
        }
        assert!(with(setting.example) != without || setting.key == "backend", "{}", setting.key);
    }
}

#[test]
fn the_page_has_the_parser_s_errors() {
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    for mistake in ["max_split_size_mb:5", "max_split_size:64", "max_split_size_mb=64"] {
        let error = cachalot_policies::parse(mistake).expect_err(mistake).to_string();
        assert!(page.contains(&format!("\n{error}\n")), "{mistake}: {error}");
    }
}
