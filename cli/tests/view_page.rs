//! The page of `cachalot view` in Chromium: clicks, keys, searches, two sources, and the pictures
//! of the documentation. Without Chromium, all but the data is left untested: see
//! `scripts/setup/chromium.sh`.

use crate::browser::Browser;
use crate::common::{cachalot, folder, trace};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Writes a page, and starts a browser. `None` without Chromium.
fn opened(test: &str, arguments: &[&str]) -> Option<(Browser, PathBuf)> {
    let folder = folder(test);
    let Some(browser) = Browser::start(&folder) else {
        eprintln!(
            "skipped: the page of `cachalot view` in a browser (CACHALOT_CHROMIUM is not set: scripts/setup/chromium.sh)"
        );
        return None;
    };
    let page = folder.join("page.html");
    let output = ["view".into(), "-o".into(), page.clone().into_os_string()];
    let file = |argument: &&str| {
        if argument.contains(".gz") { trace(argument).into_os_string() } else { argument.into() }
    };
    let files = arguments.iter().map(file);
    let finished = cachalot(output.into_iter().chain(files));
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    Some((browser, page))
}

fn text(browser: &mut Browser, selector: &str) -> String {
    let text = browser.run(&format!("document.querySelector({}).innerText", json!(selector)));
    text.as_str().expect(selector).to_owned()
}

/// Clicks an element.
fn click(browser: &mut Browser, selector: &str) {
    browser.run(&format!("document.querySelector({}).click()", json!(selector)));
}

/// Returns the middle of a part of an element, in pixels. `across` and `down` are parts of the
/// size.
fn place(browser: &mut Browser, selector: &str, across: f64, down: f64) -> (f64, f64) {
    let script = format!(
        "(() => {{ const all = document.querySelector({}); all.scrollIntoView({{block: 'center'}}); \
         const {{left, top, width, height}} = all.getBoundingClientRect(); return [left, top, width, height]; }})()",
        json!(selector)
    );
    let place = browser.run(&script);
    let number = |at: usize| place[at].as_f64().expect("a number");
    (number(0) + across * number(2), number(1) + down * number(3))
}

fn state(browser: &mut Browser) -> Value {
    browser.run(
        "(() => { const {panels, group, quantity, axis, range, words} = window.cachalot.shown; \
         return {moments: panels.map((panel) => panel.moment), counts: panels.map((panel) => panel.source.count), \
         peaks: panels.map((panel) => panel.source.peaks), group, quantity, axis, range, words}; })()",
    )
}

#[test]
fn clicks_keys_and_searches_change_what_is_shown() {
    let Some((mut browser, page)) = opened("clicks", &["multistream_prefetch__stacks.pickle.gz"]) else { return };
    browser.resize(1300, 1000, "light");
    browser.open(&page);
    assert!(text(&mut browser, ".sentence").starts_with("4.42 GiB were reserved at the peak, for at most 2.21 GiB"));
    let first = state(&mut browser);
    assert_eq!(first["moments"][0], first["peaks"][0][1], "the page begins where the most is in use");
    assert!(text(&mut browser, "#groups").contains("resnet.py"));

    // A click in the chart chooses a moment, and the segments follow.
    let at = place(&mut browser, "canvas.chart", 0.5, 0.5);
    let before = text(&mut browser, ".moment .now");
    browser.drag(at, at);
    assert_ne!(state(&mut browser)["moments"], first["moments"]);
    assert_ne!(text(&mut browser, ".moment .now"), before);

    // Dragging shows a range, and 0 shows everything.
    let end = place(&mut browser, "canvas.chart", 0.7, 0.5);
    browser.drag(at, end);
    let range = state(&mut browser)["range"].clone();
    let part = |at: usize| range[at].as_f64().expect("a number");
    assert!((0.4..0.6).contains(&part(0)) && (0.6..0.85).contains(&part(1)), "{range}");
    browser.press("0");
    assert_eq!(state(&mut browser)["range"], json!([0, 1]));

    let count = first["counts"][0].as_u64().expect("a number");
    browser.press("End");
    assert_eq!(state(&mut browser)["moments"][0], count - 1);
    browser.press("ArrowLeft");
    assert_eq!(state(&mut browser)["moments"][0], count - 2);
    for (key, name, value) in [("g", "group", "stack"), ("r", "quantity", "reserved"), ("t", "axis", "events")] {
        browser.press(key);
        assert_eq!(state(&mut browser)[name], value);
    }
    assert_eq!(text(&mut browser, "#group [aria-checked=true]"), "stack");
    for group in ["line", "stream", "pool", "state"] {
        click(&mut browser, &format!("#group [data-value={group}]"));
        assert_eq!(state(&mut browser)["group"], group);
    }
    click(&mut browser, "#group [data-value=line]");

    // Only the lines with matching stacks are left.
    browser.run("document.querySelector('#search').value = 'RECORD_TRACES.py:230 fetch'; document.querySelector('#search').dispatchEvent(new Event('input'))");
    browser.run("new Promise((done) => setTimeout(done, 300))");
    assert!(text(&mut browser, "#found").contains("match: at most"), "{}", text(&mut browser, "#found"));
    let groups = text(&mut browser, "#groups");
    assert!(groups.contains("record_traces.py:230 fetch") && !groups.contains("resnet.py"), "{groups}");
    browser.press("Escape");
    assert_eq!(state(&mut browser)["words"], json!([]));

    // A row shows the stack in full.
    click(&mut browser, "#groups .row");
    assert!(text(&mut browser, "#detail").contains("record_traces.py"));
    assert_eq!(browser.run("window.cachalot.shown.selected.kind"), "line");
    // A block of the map shows its place.
    browser.press("p");
    let found = browser.run(
        "(() => { const map = window.cachalot.shown.panels[0].map; for (const { top } of map.placed) \
         for (let x = 2; x < map.width; x += 3) if ((map.hit(x, top + 5)?.block ?? null) !== null) return [x, top + 5]; })()",
    );
    let (left, corner) = place(&mut browser, "canvas.map", 0.0, 0.0);
    let [x, y] = [0, 1].map(|at| found[at].as_f64().expect("a place"));
    let block = (left + x, corner + y);
    browser.drag(block, block);
    assert!(text(&mut browser, "#detail").contains(" at 0x"), "{}", text(&mut browser, "#detail"));
    browser.press("d");
    assert_eq!(browser.run("document.documentElement.dataset.theme"), "dark");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn two_configurations_are_side_by_side() {
    let arguments = ["--config", "expandable_segments:True", "gnn_graphs.csv.gz"];
    let Some((mut browser, page)) = opened("both", &arguments) else { return };
    browser.resize(1500, 1000, "dark");
    browser.open(&page);
    assert_eq!(browser.run("document.querySelectorAll('canvas.chart').length"), 2);
    assert!(text(&mut browser, "#answers").contains("the peak is 5.17 GiB instead of 15.73 GiB"));
    // Both panels follow a click to the same part of the program.
    let at = place(&mut browser, "canvas.chart", 0.4, 0.5);
    browser.drag(at, at);
    let after = state(&mut browser);
    let part =
        |at: usize| after["moments"][at].as_f64().expect("a number") / after["counts"][at].as_f64().expect("a number");
    assert!((part(0) - part(1)).abs() < 0.01, "{after}");
    assert!(text(&mut browser, "#groups-title").starts_with("Differences"));
    // One source alone, by the second list.
    browser.run("(() => { const list = document.querySelectorAll('#pickers select')[1]; list.value = ''; list.dispatchEvent(new Event('change')); })()");
    assert_eq!(browser.run("document.querySelectorAll('canvas.chart').length"), 1);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_failed_request_is_told_with_what_was_free() {
    let Some((mut browser, page)) = opened("failed", &["gpt2_varlen__oom.csv.gz"]) else { return };
    browser.open(&page);
    let card = text(&mut browser, ".failure");
    assert!(card.contains("A request of 1.26 GiB failed on default stream"), "{card}");
    assert!(card.contains("largest free piece here\t34.63 MiB"), "{card}");
    // Headline and card say the same.
    let enough = "enough would have been a limit of 9.12 GiB instead of 9.00 GiB, or expandable_segments:True";
    assert!(card.contains(enough) && text(&mut browser, ".sentence").contains(enough), "{card}");
    browser.press("Home");
    browser.press("o");
    let failure = browser.run("window.cachalot.shown.sources[0].failures[0].moment");
    assert_eq!(state(&mut browser)["moments"][0], failure);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// The pictures of the documentation: name, width, height, colour scheme, and arguments.
const PICTURES: [(&str, u32, u32, &str, &[&str]); 4] = [
    ("view_light", 1280, 1150, "light", &["multistream_prefetch__stacks.pickle.gz"]),
    ("view_dark", 1280, 1320, "dark", &["gpt2_varlen__oom.csv.gz"]),
    ("view_both", 1500, 1180, "light", &["--config", "expandable_segments:True", "unet_buckets.csv.gz"]),
    ("view_narrow", 420, 1500, "dark", &["multistream_prefetch__stacks.pickle.gz"]),
];

#[test]
fn the_pictures_fit_the_window() {
    for (name, width, height, scheme, arguments) in PICTURES {
        let Some((mut browser, page)) = opened(name, arguments) else { return };
        browser.resize(width, height, scheme);
        browser.open(&page);
        assert_eq!(browser.run("document.documentElement.dataset.theme"), scheme);
        let widest = browser.run("document.documentElement.scrollWidth").as_u64().expect("a number");
        assert!(widest <= u64::from(width), "{name} is {widest} pixels wide");
        let picture = STANDARD.decode(browser.picture()).expect("base64");
        assert!(picture.len() > 20_000, "{name}: {} bytes", picture.len());
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/pictures/{name}.png"));
        // Fonts differ between machines, so the committed pictures are not compared.
        if std::env::var_os("CACHALOT_WRITE_DOCS").is_some() {
            std::fs::write(&file, picture).expect("the picture can be written");
        }
        let bytes = std::fs::metadata(&file).expect(name).len();
        assert!(bytes < 200_000, "{name}: {bytes} bytes");
        assert_eq!(browser.complaints(), Vec::<String>::new());
    }
}

/// Prints how long a page takes to load, and to answer clicks, choices and searches, in
/// milliseconds until the next frame. The variable `CACHALOT_VIEW_PAGE` names the page.
#[test]
#[ignore = "a measurement"]
fn clicks_are_timed() {
    let page = PathBuf::from(std::env::var_os("CACHALOT_VIEW_PAGE").expect("CACHALOT_VIEW_PAGE names a page"));
    let mut browser = Browser::start(&folder("timed")).expect("CACHALOT_CHROMIUM is set");
    browser.resize(1400, 1000, "light");
    browser.open(&page);
    println!("loaded in {:.0} ms", browser.run("window.cachalot.shown.loaded").as_f64().expect("a time"));
    let timed = |browser: &mut Browser, what: &str, script: &str| {
        let script = format!(
            "(async () => {{ const {{shown, choose, search, setChoice}} = window.cachalot; const times = []; \
             const count = shown.panels[0].source.count; \
             for (let at = 0; at < 30; at++) {{ const start = performance.now(); {script}; \
             await new Promise(requestAnimationFrame); times.push(performance.now() - start); }} \
             return times.sort((one, other) => one - other); }})()"
        );
        let times = browser.run(&script);
        let ms = |at: usize| times[at].as_f64().expect("a time");
        println!("{what}: median {:.0} ms, worst {:.0} ms", ms(15), ms(29));
    };
    timed(&mut browser, "a click", "choose(shown.panels[0], Math.floor(count * (at + 0.5) / 30))");
    let script = "(() => { const {shown, choose} = window.cachalot; return Array.from({length: 31}, (_, at) => \
        { choose(shown.panels[0], Math.floor(shown.panels[0].source.count * at / 31)); return shown.lastClick; }) \
        .sort((one, other) => one - other)[15]; })()";
    println!("a click, without painting: median {:.0} ms", browser.run(script).as_f64().expect("a time"));
    timed(&mut browser, "a choice", "setChoice('group', ['line', 'stack', 'stream', 'pool', 'state'][at % 5])");
    timed(&mut browser, "a search", "search(['forward', 'layer_7', '', 'linear backward'][at % 4])");
}
