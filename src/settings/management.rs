//! Settings of the management server, if rules come from one.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use super::duration;
use super::path::path;
use super::tolerated::{RESPONSE_BYTES, positive_or_default, whole_or_nearest};
use super::{PeerTls, Settings, SettingsError, switch};
use crate::sources::xds::{Backoff, Headers, HostPort, Metadata, Options, PING_INTERVAL};
use crate::tls::{ClientFiles, Expected, NamedFile, Protocol, Trusted};

/// Default for the longest response: room for 256 rules of 128 headers each, and more.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;

/// Settings of the management server that sends the rules, with CONFIG_TYPE=GRPC_XDS_SOTW.
#[derive(Args, Clone, Debug)]
pub struct ManagementSettings {
    /// Address of the management server.
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_URL", value_name = "HOST:PORT", default_value = "localhost:18000",
        help_heading = "Management server", value_parser = str::parse::<HostPort>)]
    pub config_grpc_xds_server_url: HostPort,

    /// Node ID to send. The server sends the rules for this name.
    #[arg(
        long,
        env = "CONFIG_GRPC_XDS_NODE_ID",
        value_name = "NAME",
        default_value = "default",
        help_heading = "Management server"
    )]
    pub config_grpc_xds_node_id: String,

    /// Metadata of the node to send: `name=value,name=value`.
    #[arg(long, env = "CONFIG_GRPC_XDS_NODE_METADATA", value_name = "PAIRS", default_value = "",
        hide_default_value = true, help_heading = "Management server", value_parser = str::parse::<Metadata>)]
    pub config_grpc_xds_node_metadata: Metadata,

    /// Headers to send to the server, such as a token: `name:value,name:value`.
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", value_name = "PAIRS", default_value = "",
        hide_default_value = true, hide_env_values = true, help_heading = "Management server",
        value_parser = str::parse::<Headers>)]
    pub config_grpc_xds_client_additional_headers: Headers,

    /// First wait before a retry if the server cannot be reached or the connection is lost. Each further wait is twice
    /// as long, up to XDS_CLIENT_BACKOFF_MAX_INTERVAL.
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", value_name = "DURATION", default_value = "3s",
        help_heading = "Management server",
        value_parser = positive_or_default("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL"))]
    pub config_grpc_xds_server_connect_retry_interval: Duration,

    /// First wait before a retry if the server rejects the stream.
    #[arg(long, env = "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", value_name = "DURATION", default_value = "10s",
        help_heading = "Management server",
        value_parser = positive_or_default("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"))]
    pub xds_client_backoff_initial_interval: Duration,

    /// Longest wait before a retry, without the random part.
    #[arg(long, env = "XDS_CLIENT_BACKOFF_MAX_INTERVAL", value_name = "DURATION", default_value = "60s",
        help_heading = "Management server",
        value_parser = positive_or_default("XDS_CLIENT_BACKOFF_MAX_INTERVAL"))]
    pub xds_client_backoff_max_interval: Duration,

    /// Share by which each wait is randomly shortened or lengthened, to keep instances from retrying at once. 0.5 gives
    /// half to one and a half times the wait. Values over 1 count as 1.
    #[arg(long, env = "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", value_name = "SHARE", default_value = "0.5",
        help_heading = "Management server", value_parser = share)]
    pub xds_client_backoff_random_factor: f64,

    /// Randomize the backoff.
    #[arg(long, env = "XDS_CLIENT_BACKOFF_JITTER", help_heading = "Management server", value_parser = switch(),
        ignore_case = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        default_value = "true")]
    pub xds_client_backoff_jitter: bool,

    /// Longest response in bytes; 0 means 16 MiB. Reading a response takes about ten times as much memory.
    #[arg(long, env = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", value_name = "BYTES", default_value = "0",
        help_heading = "Management server", value_parser = whole_or_nearest(RESPONSE_BYTES))]
    pub xds_client_max_msg_size_in_bytes: u32,

    /// Time after a new connection for which rules stay in force that the server has not yet sent again. A server that
    /// has just started may not know all rules. A rule that the server has sent and then leaves out is removed at once.
    #[arg(long, env = "CONFIG_GRPC_XDS_REMOVAL_DELAY", value_name = "DURATION", default_value = "30s",
        help_heading = "Management server", value_parser = duration)]
    pub config_grpc_xds_removal_delay: Duration,

    /// Use TLS with the server. Its files are read again for each new connection.
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_USE_TLS", help_heading = "Management server", value_parser = switch(),
        ignore_case = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        default_value = "false")]
    pub config_grpc_xds_server_use_tls: bool,

    /// File with the only authorities (PEM) to trust for the server's certificate. Unset: public authorities and those
    /// of the machine.
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", value_name = "FILE", help_heading = "Management server",
        value_parser = path)]
    pub config_grpc_xds_server_tls_cacert: Option<PathBuf>,

    /// Name that the server's certificate must have. Unset: the host of CONFIG_GRPC_XDS_SERVER_URL.
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_TLS_SAN", value_name = "NAME", help_heading = "Management server")]
    pub config_grpc_xds_server_tls_san: Option<String>,

    /// File with the certificate (PEM) to send if the server asks for one, followed by any intermediate certificates.
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", value_name = "FILE", help_heading = "Management server",
        value_parser = path)]
    pub config_grpc_xds_client_tls_cert: Option<PathBuf>,

    /// File with the private key (PEM) of CONFIG_GRPC_XDS_CLIENT_TLS_CERT, without a passphrase.
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", value_name = "FILE", help_heading = "Management server",
        value_parser = path)]
    pub config_grpc_xds_client_tls_key: Option<PathBuf>,
}

impl ManagementSettings {
    /// Returns the files for TLS; `None` without TLS.
    ///
    /// # Errors
    /// Fails if only one of the two files is set.
    pub fn tls(&self) -> Result<Option<PeerTls>, SettingsError> {
        if !self.config_grpc_xds_server_use_tls {
            return Ok(None);
        }
        let file = |name, path: &Option<PathBuf>| path.clone().map(|path| NamedFile { name, path });
        let chain = file("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &self.config_grpc_xds_client_tls_cert);
        let key = file("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &self.config_grpc_xds_client_tls_key);
        let authorities = file("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &self.config_grpc_xds_server_tls_cacert);
        let identity = match (chain, key) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            _ => return Err(SettingsError::HalfClientIdentity),
        };
        let trusted = authorities.map_or(Trusted::Machine(Expected::Name), |file| Trusted::Only(file, Expected::Name));
        let name = self.config_grpc_xds_server_tls_san.as_ref().unwrap_or(&self.config_grpc_xds_server_url.host);
        let files = ClientFiles { trusted, identity, protocol: Protocol::Grpc };
        Ok(Some(PeerTls { files, name: name.clone() }))
    }
}

impl Settings {
    /// Returns the options of the client of the management server.
    pub fn management_server(&self) -> Options {
        let management = &self.management;
        Options {
            server: management.config_grpc_xds_server_url.clone(),
            handshake: None,
            node_id: management.config_grpc_xds_node_id.clone(),
            node_metadata: management.config_grpc_xds_node_metadata.clone(),
            headers: management.config_grpc_xds_client_additional_headers.clone(),
            max_response_bytes: match management.xds_client_max_msg_size_in_bytes {
                0 => MAX_RESPONSE_BYTES,
                bytes => bytes as usize,
            },
            ping_interval: PING_INTERVAL,
            backoff: Backoff {
                unreachable: management.config_grpc_xds_server_connect_retry_interval,
                refused: management.xds_client_backoff_initial_interval,
                most: management.xds_client_backoff_max_interval,
                spread: match management.xds_client_backoff_jitter {
                    true => management.xds_client_backoff_random_factor,
                    false => 0.0,
                },
            },
            removal_delay: management.config_grpc_xds_removal_delay,
            load: self.reading.load_options(),
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| share.is_finite());
    share.map(|share| share.max(0.0)).ok_or_else(|| "must be a number from 0 to 1".to_owned())
}
