//! Commands to a Redis or a Sentinel, by redis-cli.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::process::program;
use super::system::Programs;

/// Sends a command to a Redis, and returns its reply as text: a list has a line for each element.
///
/// # Errors
/// Fails if Redis cannot be reached, or replies with an error.
pub async fn ask(programs: &Programs, port: u16, words: &[&str]) -> anyhow::Result<String> {
    let port = port.to_string();
    run(programs, &[&["-e", "-p", &port], words].concat()).await
}

/// Manages a cluster: these are the words after `redis-cli --cluster`.
///
/// # Errors
/// Fails if redis-cli says that it failed.
pub async fn cluster(programs: &Programs, words: &[&str]) -> anyhow::Result<String> {
    run(programs, &[&["--cluster"], words].concat()).await
}

/// Runs redis-cli on another thread: the load needs this one.
async fn run(programs: &Programs, arguments: &[&str]) -> anyhow::Result<String> {
    let client = program(&programs.redis)?.with_file_name("redis-cli");
    let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
    let said = format!("redis-cli {}", arguments.join(" "));
    let output = tokio::task::spawn_blocking(move || Command::new(client).args(arguments).output()).await?;
    let output = output.with_context(|| said.clone())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{said} fails: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

/// Returns the value that follows a name in a reply of names and values, a line for each.
pub fn field<'a>(reply: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = reply.lines();
    lines.find(|line| *line == name).and_then(|_| lines.next())
}

/// Waits until something is so; an error means not yet.
///
/// # Errors
/// Fails if it is not so in time.
pub async fn wait_until(what: &str, is_so: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let last = is_so().await;
        if let Ok(true) = last {
            return Ok(());
        }
        if begin.elapsed() > Duration::from_secs(30) {
            bail!("half a minute has passed, and still not: {what}: {last:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_the_line_after_its_name() {
        let reply = "name\nmain\nflags\nmaster\n";
        assert_eq!(field(reply, "flags"), Some("master"));
        assert_eq!(field(reply, "port"), None);
    }
}
