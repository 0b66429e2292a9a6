//! Checks that every link between files of the repository leads to an existing file or folder, and
//! to an existing heading.

use super::sources::texts;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Anchors and links of a Markdown file.
struct Page {
    /// Anchors of the headings, as GitHub and mdBook generate them.
    anchors: HashSet<String>,
    /// Targets of links and pictures.
    links: Vec<String>,
}

fn anchor(heading: &str) -> String {
    let letters = heading.to_lowercase();
    let kept = letters.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn read(text: &str) -> Page {
    let mut page = Page { anchors: HashSet::new(), links: Vec::new() };
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let text = heading.take().expect("it has begun");
                page.anchors.insert(anchor(&text));
            }
            Event::Text(part) | Event::Code(part) => {
                if let Some(text) = &mut heading {
                    text.push_str(&part);
                }
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.into_string());
            }
            _ => {}
        }
    }
    page
}

/// Returns a path with `.` and `..` resolved, or `None` if the path leaves the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => normal.pop().then_some(())?,
            Component::Normal(name) => normal.push(name),
            _ => {}
        }
    }
    Some(normal)
}

/// Returns the defect of a link in `from`, or `None` for a good link or a link out of the
/// repository.
fn fault(from: &Path, link: &str, pages: &HashMap<PathBuf, Page>) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let Some(target) = normal(&from.parent().expect("a file").join(path)) else {
        return Some("it leaves the repository");
    };
    let target = if path.is_empty() { from } else { &target };
    if !Path::new(ROOT).join(target).exists() {
        return Some("there is no such file");
    }
    let page = pages.get(target)?;
    anchor.filter(|&anchor| !page.anchors.contains(anchor)).map(|_| "the file has no such heading")
}

#[test]
fn links_between_files_lead_somewhere() {
    let pages: HashMap<_, _> = texts("", &["md"]).map(|(file, text)| (file, read(&text))).collect();
    assert!(pages.contains_key(Path::new("README.md")), "the repository's root was found");
    let links = pages.iter().flat_map(|(file, page)| page.links.iter().map(move |link| (file, link)));
    let faults = links.filter_map(|(file, link)| {
        let why = fault(file, link, &pages)?;
        Some(format!("{}: `{link}`: {why}", file.display()))
    });
    let mut faults: Vec<_> = faults.collect();
    faults.sort();
    assert!(faults.is_empty(), "dead links:\n{}", faults.join("\n"));
}

#[test]
fn dead_links_are_found() {
    let page = "# One heading: `code`\n[a](b.md) ![p](c.svg) [self](#one-heading-code) `[no](link)`\n";
    let page = read(page);
    assert_eq!(page.links, ["b.md", "c.svg", "#one-heading-code"]);
    let pages = HashMap::from([(PathBuf::from("docs/concepts.md"), page)]);
    let of = |link| fault(Path::new("docs/concepts.md"), link, &pages);
    assert_eq!(of("#one-heading-code"), None);
    assert_eq!(of("../README.md"), None);
    assert_eq!(of("https://example.org/none"), None);
    assert_eq!(of("#another"), Some("the file has no such heading"));
    assert_eq!(of("nowhere.md"), Some("there is no such file"));
    assert_eq!(of("../../outside.md"), Some("it leaves the repository"));
}
