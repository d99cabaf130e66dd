//! Host names that the administrators' paths and the console answer to.
//!
//! A page of another site can make a browser send requests to this port under a name of that site (DNS rebinding). It
//! learns nothing, because each request needs a token in a header. The setting keeps such a page from even asking.
//! IP addresses and `localhost` are always valid: no other site has them as its name.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::admin::refuse;

/// Host names to answer to: all by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(Option<Arc<[String]>>);

impl FromStr for Hosts {
    type Err = String;

    /// Parses names that commas separate: `tollgate.example.com,tollgate`.
    fn from_str(text: &str) -> Result<Hosts, String> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(|name| {
            let is_of_name = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
            match name.chars().all(is_of_name) {
                true => Ok(plain(name)),
                false => Err(format!(
                    "{name:?} is not a host name: write names without ports, such as tollgate,limits.example.com"
                )),
            }
        });
        let names: Vec<String> = names.collect::<Result<_, _>>()?;
        match names.is_empty() {
            true => Err("write host names, separated by commas".to_owned()),
            false => Ok(Hosts(Some(names.into()))),
        }
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("any"),
            Some(names) => write!(f, "{}, localhost and IP addresses", names.join(", ")),
        }
    }
}

impl Hosts {
    fn has(&self, authority: Option<&str>) -> bool {
        let Some(names) = &self.0 else { return true };
        let Some(Ok(authority)) = authority.map(str::parse::<Authority>) else { return false };
        let host = plain(authority.host());
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || bare.parse::<IpAddr>().is_ok() || names.contains(&host)
    }
}

/// Returns the name in small letters, without the dot at the end of a complete name.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Refuses requests to other hosts.
pub(super) async fn answer_to(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let of_header = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(Authority::as_str).or_else(of_header);
    if hosts.has(host) {
        return next.run(request).await;
    }
    let reason = format!("ADMIN_HOSTS does not name this host: this path answers to {hosts}");
    refuse(StatusCode::MISDIRECTED_REQUEST, reason).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_setting_are_answered_besides_addresses_and_localhost() {
        let hosts: Hosts = "Tollgate.example.com., tollgate,".parse().unwrap();
        for host in [
            "tollgate.example.com",
            "TOLLGATE.example.com.:8080",
            "tollgate:80",
            "localhost:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.1.2.3",
        ] {
            assert!(hosts.has(Some(host)), "{host}");
        }
        for host in
            ["evil.example", "tollgate.evil.example:8080", "localhost.evil.example", "1.2.3.4.nip.io", "", "a b"]
        {
            assert!(!hosts.has(Some(host)), "{host}");
        }
        assert!(!hosts.has(None));
        assert!(Hosts::default().has(None) && Hosts::default().has(Some("evil.example")));
        assert_eq!(hosts.to_string(), "tollgate.example.com, tollgate, localhost and IP addresses");
    }

    #[test]
    fn a_setting_without_names_or_with_a_port_is_refused() {
        for text in ["", " , ", "http://tollgate", "tollgate:8080", "*.example.com"] {
            assert!(text.parse::<Hosts>().is_err(), "{text}");
        }
    }
}
