//! Signs that this process is one of several. With counters in memory, each of them then counts for itself.

use super::Environment;

/// Variables that are set only by platforms that run several replicas of a container, with the platform's name.
const PLATFORMS: &[(&str, &str)] = &[
    ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
    ("ECS_CONTAINER_METADATA_URI_V4", "Amazon ECS"),
    ("ECS_CONTAINER_METADATA_URI", "Amazon ECS"),
    ("K_SERVICE", "Cloud Run or Knative"),
    ("NOMAD_ALLOC_ID", "Nomad"),
    ("CONTAINER_APP_REPLICA_NAME", "Azure Container Apps"),
    ("WEBSITE_INSTANCE_ID", "Azure App Service"),
    ("FLY_MACHINE_ID", "Fly.io"),
    ("DYNO", "Heroku"),
    ("RENDER_INSTANCE_ID", "Render"),
    ("RAILWAY_REPLICA_ID", "Railway"),
    ("MARATHON_APP_ID", "Marathon"),
];

/// Returns a sign that several instances run, for a warning when counters live in memory. `expected` is
/// `EXPECTED_REPLICAS` if it is set; 1 means that this instance is the only one.
pub fn sign_of_replicas(environment: &Environment, expected: Option<u32>) -> Option<String> {
    match expected {
        Some(1) => None,
        Some(number) => Some(format!("EXPECTED_REPLICAS={number}")),
        None => {
            let (variable, platform) = PLATFORMS.iter().find(|(variable, _)| environment.get(variable).is_some())?;
            Some(format!("this is {platform} ({variable} is set)"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_or_a_number_is_a_sign_of_replicas() {
        for (variable, platform) in PLATFORMS {
            let environment = [(*variable, "x")].into_iter().collect();
            assert_eq!(
                sign_of_replicas(&environment, None).unwrap(),
                format!("this is {platform} ({variable} is set)")
            );
            assert_eq!(sign_of_replicas(&environment, Some(1)), None, "who says so knows");
        }
        let nothing = Environment::default();
        assert_eq!(sign_of_replicas(&nothing, None), None);
        assert_eq!(sign_of_replicas(&nothing, Some(3)).unwrap(), "EXPECTED_REPLICAS=3");
    }
}
