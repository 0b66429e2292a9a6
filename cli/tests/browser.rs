//! A headless Chromium, driven by the protocol of `DevTools` over a pair of named pipes.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The variable with the path of Chromium: see `scripts/setup/chromium.sh`.
const VARIABLE: &str = "CACHALOT_CHROMIUM";

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    to: File,
    from: BufReader<File>,
    /// The number of the latest command.
    number: u64,
    session: Option<String>,
    /// Events that were not asked for yet.
    events: VecDeque<Value>,
}

impl Browser {
    /// Starts a browser. `None` without Chromium. `folder` gets the browser's files.
    pub(crate) fn start(folder: &Path) -> Option<Self> {
        let chromium = std::env::var_os(VARIABLE)?;
        let [to, from] = ["to", "from"].map(|name| folder.join(name));
        let made = Command::new("mkfifo").args([&to, &from]).status();
        assert!(made.expect("mkfifo runs").success());
        let mut command = Command::new("sh");
        // The browser reads commands from descriptor 3, and writes to descriptor 4.
        command.args(["-c", "exec \"$@\" 3<to 4>from", "sh"]).arg(chromium).current_dir(folder);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]);
        command.args(["--remote-debugging-pipe", "--no-first-run", "--disable-background-networking"]);
        command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("a shell");
        // Each opening waits for the other end.
        let to = File::options().write(true).open(to).expect("the pipe");
        let from = BufReader::new(File::open(from).expect("the pipe"));
        let mut browser = Self { process, to, from, number: 0, session: None, events: VecDeque::new() };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attached = browser.call("Target.attachToTarget", &json!({"targetId": target["targetId"], "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the protocol, and returns the result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.number += 1;
        let mut message = json!({"id": self.number, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("the browser reads");
        loop {
            let answer = self.next();
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push_back(answer);
        }
    }

    /// Reads the next message.
    fn next(&mut self) -> Value {
        let mut message = Vec::new();
        self.from.read_until(0, &mut message).expect("the browser writes");
        assert_eq!(message.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&message).expect("JSON")
    }

    /// Opens a file, and waits until the page is ready.
    pub(crate) fn open(&mut self, page: &Path) {
        self.call("Page.navigate", &json!({"url": format!("file://{}", page.display())}));
        loop {
            let event = self.events.pop_front().unwrap_or_else(|| self.next());
            if event["method"] == "Page.loadEventFired" {
                break;
            }
        }
        self.run("window.cachalot.ready");
    }

    /// Runs a script, waits for a promise, and returns the value.
    pub(crate) fn run(&mut self, script: &str) -> Value {
        let parameters = json!({"expression": script, "awaitPromise": true, "returnByValue": true});
        let done = self.call("Runtime.evaluate", &parameters);
        assert!(done["exceptionDetails"].is_null(), "{script}: {}", done["exceptionDetails"]);
        done["result"]["value"].clone()
    }

    /// Presses and releases a key.
    pub(crate) fn press(&mut self, key: &str) {
        let text = if key.len() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            self.call(
                "Input.dispatchKeyEvent",
                &json!({"type": kind, "key": key, "text": if kind == "keyDown" { text } else { "" }}),
            );
        }
    }

    /// Presses the mouse at a place in pixels, moves it, and releases it at another place.
    pub(crate) fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        let steps = [("mouseMoved", from), ("mousePressed", from), ("mouseMoved", to), ("mouseReleased", to)];
        for (kind, (x, y)) in steps {
            let parameters = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", &parameters);
        }
    }

    /// Sets the size of the window in pixels, and the colour scheme.
    pub(crate) fn resize(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &feature);
    }

    /// Returns a picture of the window in PNG, in base64.
    pub(crate) fn picture(&mut self) -> String {
        let picture = self.call("Page.captureScreenshot", &json!({"format": "png"}));
        picture["data"].as_str().expect("a picture").to_owned()
    }

    /// Returns errors of the console and requests to the network so far.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        // All earlier events arrive before an answer.
        self.run("0");
        let is_bad = |event: &Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => event["params"]["type"] == "error",
            Some("Log.entryAdded") => event["params"]["entry"]["level"] == "error",
            Some("Network.requestWillBeSent") => {
                let address = event["params"]["request"]["url"].as_str().unwrap_or_default();
                !address.starts_with("file:") && !address.starts_with("data:")
            }
            _ => false,
        };
        self.events.drain(..).filter(is_bad).map(|event| event.to_string()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
