//! Settings of notices that counters reach shares of their limits.

use std::fs;
use std::path::{Path, PathBuf};

use axum::http::Uri;
use clap::Args;

use super::path::path;
use super::{PeerTls, SettingsError, named};
use crate::files::refuse_pipe;
use crate::notify::Secret;
use crate::observe::redaction::Shown;
use crate::tls::{ClientFiles, Expected, NamedFile, Protocol, Trusted};

/// Settings of notices of limits with `notify`.
#[derive(Args, Clone, Debug)]
pub struct NotifySettings {
    /// URL of a webhook that is told when a counter reaches a mark of its limit's `notify`. https:// means TLS. Unset:
    /// only the log is told.
    #[arg(long, env = "NOTIFY_WEBHOOK_URL", value_name = "URL", hide_env_values = true, help_heading = "Notices",
        value_parser = url)]
    pub notify_webhook_url: Option<Uri>,

    /// Secret that signs what the webhook gets: whsec_ and base64 of at least 16 bytes, as Standard Webhooks has it, or
    /// another text of at least 16 characters.
    #[arg(
        long,
        env = "NOTIFY_WEBHOOK_SECRET",
        value_name = "SECRET",
        hide_env_values = true,
        help_heading = "Notices"
    )]
    pub notify_webhook_secret: Option<String>,

    /// File with the secret. It takes precedence over NOTIFY_WEBHOOK_SECRET.
    #[arg(long, env = "NOTIFY_WEBHOOK_SECRET_FILE", value_name = "FILE", help_heading = "Notices", value_parser = path)]
    pub notify_webhook_secret_file: Option<PathBuf>,

    /// File with the only authorities (PEM) to trust for the webhook's certificate. Unset: public authorities and those
    /// of the machine. The file is read again for each new connection.
    #[arg(long, env = "NOTIFY_WEBHOOK_TLS_CACERT", value_name = "FILE", help_heading = "Notices", value_parser = path)]
    pub notify_webhook_tls_cacert: Option<PathBuf>,

    /// How notices show the values of descriptors, in the log, too: as they are, hashed with VALUES_KEY, or not at all.
    #[arg(long, env = "NOTIFY_VALUES", value_name = "HOW", default_value = "plain", ignore_case = true,
        help_heading = "Notices", value_parser = named(&Shown::ALL, Shown::name))]
    pub notify_values: Shown,
}

impl NotifySettings {
    /// Returns the webhook and its secret; `None` without a webhook. Reads the file of NOTIFY_WEBHOOK_SECRET_FILE.
    ///
    /// # Errors
    /// Fails if there is no valid secret.
    pub fn webhook(&self) -> Result<Option<(&Uri, Secret)>, SettingsError> {
        let Some(url) = &self.notify_webhook_url else { return Ok(None) };
        let (setting, text) = match (&self.notify_webhook_secret_file, &self.notify_webhook_secret) {
            (Some(file), _) => ("NOTIFY_WEBHOOK_SECRET_FILE", read(file)?),
            (None, Some(secret)) => ("NOTIFY_WEBHOOK_SECRET", secret.clone()),
            (None, None) => return Err(SettingsError::NoNotifySecret),
        };
        let secret = Secret::parse(&text).map_err(|why| SettingsError::NotifySecret(setting, why))?;
        Ok(Some((url, secret)))
    }

    /// Returns the files for TLS with the webhook; `None` without TLS.
    pub fn tls(&self) -> Option<PeerTls> {
        let url = self.notify_webhook_url.as_ref().filter(|url| is_secure(url))?;
        let trusted = match &self.notify_webhook_tls_cacert {
            Some(path) => {
                Trusted::Only(NamedFile { name: "NOTIFY_WEBHOOK_TLS_CACERT", path: path.clone() }, Expected::Name)
            }
            None => Trusted::Machine(Expected::Name),
        };
        let name = url.host()?.trim_matches(['[', ']']).to_owned();
        Some(PeerTls { files: ClientFiles { trusted, identity: None, protocol: Protocol::Unnamed }, name })
    }

    /// Returns whether the webhook is asked over TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.notify_webhook_url.as_ref().is_some_and(is_secure)
    }
}

fn is_secure(url: &Uri) -> bool {
    url.scheme_str() == Some("https")
}

fn url(text: &str) -> Result<Uri, String> {
    let wrong = "must be a URL, such as https://hooks.example.com/limits";
    let url: Uri = text.parse().map_err(|_| wrong)?;
    match (url.scheme_str(), url.authority()) {
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            Err("must have no user and password: the webhook knows the sender by the signature".to_owned())
        }
        (Some("http" | "https"), Some(_)) => Ok(url),
        _ => Err(wrong.to_owned()),
    }
}

fn read(path: &Path) -> Result<String, SettingsError> {
    match refuse_pipe(path).and_then(|()| fs::read_to_string(path)) {
        Ok(secret) => Ok(secret.trim_end_matches(['\r', '\n']).to_owned()),
        Err(error) => {
            Err(SettingsError::NotifySecret("NOTIFY_WEBHOOK_SECRET_FILE", format!("cannot be read: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_has_a_url_of_http_without_a_password() {
        for good in ["http://localhost:9/", "https://hooks.example.com/limits?team=1", "http://[::1]:80"] {
            assert!(url(good).is_ok(), "{good}");
        }
        for bad in ["", "hooks.example.com", "/limits", "ftp://hooks.example.com", "https://"] {
            assert!(url(bad).unwrap_err().contains("such as https://"), "{bad}");
        }
        assert!(url("https://me:secret@hooks.example.com").unwrap_err().contains("signature"));
    }
}
