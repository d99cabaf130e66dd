//! HTTP/1.1 of any method and body, right or wrong.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::support::SOON;

/// The request.
pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub body: Option<&'a str>,
}

/// The response.
pub struct Answer {
    pub status: u16,
    pub body: String,
}

/// Asks, and reads the answer to its end.
pub fn ask(port: u16, Request { method, path, body }: &Request<'_>) -> Result<Answer, String> {
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(SOON))?;
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")?;
        if let Some(body) = body {
            write!(stream, "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        } else {
            write!(stream, "\r\n")?;
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = exchange().map_err(|error| format!("port {port}: {error}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("no answer: {answer:?}"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunk(body) } else { body.to_owned() };
    Ok(Answer { status: status.ok_or_else(|| format!("no status: {head:?}"))?, body })
}

/// Decodes a chunked body. Bodies are ASCII here, so a chunk has as many characters as bytes.
fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap_or(0);
        let Some(chunk) = rest.get(..length).filter(|chunk| !chunk.is_empty()) else { break };
        whole.push_str(chunk);
        body = rest[length..].trim_start_matches("\r\n");
    }
    whole
}
