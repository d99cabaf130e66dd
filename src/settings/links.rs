//! Variables that Kubernetes sets in every container for every Service of its namespace, as Docker once did for links.
//! A Service with the name of one of Tollgate's settings sets that setting.

/// Returns whether a variable is one of these: `REDIS_PORT=tcp://10.0.0.1:6379`, `REDIS_SERVICE_HOST`.
pub(super) fn is_service_link(variable: &str, value: &str) -> bool {
    is_address(value) || is_service(variable) || is_port_of_service(variable)
}

/// Returns the parser of the port in `variable`.
pub fn port(variable: &'static str) -> impl Fn(&str) -> Result<u16, String> + Clone {
    move |text| {
        text.parse().map_err(|_| match variable.strip_suffix("_PORT") {
            Some(service) if is_address(text) => format!(
                "not a port, but the value that Kubernetes sets for a Service named `{}`: set {variable} in the \
                 container's env, or enableServiceLinks: false on the pod, or rename the Service",
                service.to_lowercase().replace('_', "-")
            ),
            None if is_address(text) => "an address, as Kubernetes sets it for Services: write only the port".into(),
            _ => format!("must be a whole number from 0 to {}", u16::MAX),
        })
    }
}

fn is_address(value: &str) -> bool {
    ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme))
}

/// Matches `NAME_SERVICE_HOST`, `NAME_SERVICE_PORT` and `NAME_SERVICE_PORT_GRPC`.
fn is_service(variable: &str) -> bool {
    ["_SERVICE_HOST", "_SERVICE_PORT"].iter().any(|end| variable.ends_with(end)) || variable.contains("_SERVICE_PORT_")
}

/// Matches `NAME_PORT_6379_TCP`, also with a suffix.
fn is_port_of_service(variable: &str) -> bool {
    let behind = variable.split("_PORT_").skip(1);
    behind.filter_map(|rest| rest.split_once('_')).any(|(number, protocol)| {
        number.parse::<u16>().is_ok() && ["TCP", "UDP", "SCTP"].iter().any(|name| protocol.starts_with(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_sets_is_told_from_what_people_set() {
        for (variable, value, is_link) in [
            ("REDIS_PORT", "tcp://10.96.0.11:6379", true),
            ("DNS_PORT", "udp://10.96.0.10:53", true),
            ("REDIS_SERVICE_HOST", "10.96.0.11", true),
            ("REDIS_SERVICE_PORT", "6379", true),
            ("TOLLGATE_SERVICE_PORT_GRPC", "8081", true),
            ("TOLLGATE_PORT_8081_TCP", "tcp://10.96.0.12:8081", true),
            ("TOLLGATE_PORT_8081_TCP_ADDR", "10.96.0.12", true),
            ("TOLLGATE_PORT_8081_TCP_PROTO", "tcp", true),
            ("REDIS_PORT", "6379", false),
            ("TOLLGATE_PORT", "8081", false),
            ("REDIS_PORT_NUMBER", "6379", false),
            ("REDIS_HOST", "10.96.0.11", false),
        ] {
            assert_eq!(is_service_link(variable, value), is_link, "{variable}={value}");
        }
    }

    #[test]
    fn a_service_with_the_name_of_a_setting_is_named() {
        let told = port("GRPC_PORT")("tcp://10.0.0.1:8081").unwrap_err();
        assert!(told.contains("a Service named `grpc`"), "{told}");
        assert!(port("PORT")("tcp://10.0.0.1:8080").unwrap_err().contains("write only the port"));
        assert_eq!(port("PORT")("8080"), Ok(8080));
        for wrong in ["65536", "-1", "http", ""] {
            assert_eq!(port("PORT")(wrong).unwrap_err(), "must be a whole number from 0 to 65535");
        }
    }
}
