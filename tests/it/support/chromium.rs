//! A headless Chromium, controlled by its DevTools protocol.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

/// Time limit for a page to show something.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A page in a separate browser.
pub struct Page {
    browser: Child,
    _profile: TempDir,
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    session: String,
    sent: u64,
    /// The URLs that the page has requested.
    pub asked: Vec<String>,
    /// JavaScript errors and failed requests.
    pub errors: Vec<String>,
}

impl Page {
    /// An empty one, so large.
    pub fn open((width, height): (u32, u32)) -> Page {
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stderr(Stdio::piped())
            .spawn()
            .expect("scripts/test-tools.sh chromium installs Chromium");
        let mut lines = BufReader::new(browser.stderr.take().unwrap()).lines();
        let said = lines.find_map(|line| Some(line.unwrap().strip_prefix("DevTools listening on ")?.to_owned()));
        // Reads the output, so that the browser never blocks.
        std::thread::spawn(move || lines.count());
        let (socket, _) = tungstenite::connect(said.unwrap()).unwrap();
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        }
        let (asked, errors) = (Vec::new(), Vec::new());
        let mut page = Page { browser, _profile: profile, socket, session: String::new(), sent: 0, asked, errors };
        let target = page.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = page.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        page.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        page.call("Emulation.setDeviceMetricsOverride", metrics);
        page
    }

    /// The result of a command.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The result of a command, or its error.
    fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.sent += 1;
        let mut command = json!({ "id": self.sent, "method": method, "params": params });
        if !self.session.is_empty() {
            command["sessionId"] = self.session.clone().into();
        }
        self.socket.send(Message::text(command.to_string())).unwrap();
        loop {
            let Message::Text(text) = self.socket.read().unwrap() else { continue };
            let told: Value = serde_json::from_str(&text).unwrap();
            if told["id"] == self.sent {
                return if told["error"].is_null() { Ok(told["result"].clone()) } else { Err(told) };
            }
            self.note(&told);
        }
    }

    fn note(&mut self, told: &Value) {
        let params = &told["params"];
        match told["method"].as_str().unwrap_or_default() {
            "Network.requestWillBeSent" => self.asked.push(params["request"]["url"].as_str().unwrap().to_owned()),
            "Runtime.exceptionThrown" => self.errors.push(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" if params["type"] == "error" => self.errors.push(params["args"].to_string()),
            "Log.entryAdded" if params["entry"]["level"] == "error" => self.errors.push(params["entry"].to_string()),
            _ => {}
        }
    }

    /// Emulates the preferred color scheme, light or dark.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    pub fn go(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// Evaluates an expression and returns its result.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        self.evaluate_here(expression).unwrap_or_else(|error| panic!("{expression:.200}: {error}"))
    }

    /// The same; fails if the page is left meanwhile.
    fn evaluate_here(&mut self, expression: &str) -> Result<Value, Value> {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let told = self.ask("Runtime.evaluate", params)?;
        assert!(told["exceptionDetails"].is_null(), "{expression:.200}: {told}");
        Ok(told["result"]["value"].clone())
    }

    /// Waits until an expression is true, of this page or of one that is being loaded.
    pub fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        loop {
            match self.evaluate_here(&format!("Boolean({expression})")) {
                Ok(value) if value == true => return,
                Err(error) if !error["error"]["message"].to_string().contains("navigated") => panic!("{error}"),
                _ => {}
            }
            assert!(start.elapsed() < TIMEOUT, "never: {expression}; the page: {}", self.text());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the page contains this text.
    pub fn wait_for_text(&mut self, text: &str) {
        self.wait_for(&format!("document.body?.innerText.includes({})", json!(text)));
    }

    /// All that a person reads.
    pub fn text(&mut self) -> String {
        self.evaluate("document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Presses the keys of a text.
    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    pub fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" && key == "Enter" { "\r" } else { "" };
            let event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Returns a screenshot as PNG.
    pub fn picture(&mut self) -> String {
        self.call("Page.captureScreenshot", json!({ "format": "png" }))["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}
