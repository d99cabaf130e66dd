//! A command on a terminal, with somebody at the keyboard.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use super::wait_until;

/// A command that runs on a terminal of its own.
pub struct Terminal {
    script: Child,
    shown: Arc<Mutex<String>>,
    /// What was waited for comes after this.
    seen: usize,
}

impl Terminal {
    /// Runs a line of a shell with nothing in its environment but these variables and a terminal that has colors.
    pub fn start(line: &str, variables: &[(&str, &str)]) -> Terminal {
        let mut script = Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command", line, "/dev/null"])
            .env_clear()
            .env("TERM", "xterm-256color")
            .env("PATH", std::env::var("PATH").unwrap())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (shown, mut output) = (Arc::new(Mutex::new(String::new())), script.stdout.take().unwrap());
        let drawn = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Terminal { script, shown, seen: 0 }
    }

    /// Waits until this is shown after what was waited for before.
    pub fn wait_for(&mut self, text: &str) {
        let shown = Arc::clone(&self.shown);
        let mut end = None;
        wait_until(text, || {
            let shown = shown.lock().unwrap();
            end = shown[self.seen..].find(text).map(|at| self.seen + at + text.len());
            end.is_some()
        });
        self.seen = end.unwrap();
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.script.stdin.as_ref().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end of the command. Returns its exit code.
    pub fn end(mut self) -> Option<i32> {
        let mut code = None;
        wait_until("the command ends", || {
            code = self.script.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code()
    }

    /// Returns all that was shown.
    pub fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
