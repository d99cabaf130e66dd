//! What all metrics of the process share.

/// Prefix of every name.
pub(super) const NAMESPACE: &str = "tollgate";

/// Bounds of durations in seconds: from the time of a decision in memory to the longest timeouts of clients. They
/// include the default bounds of Prometheus, which dashboards for `envoyproxy/ratelimit` expect.
pub(super) const SECONDS: [f64; 19] = [
    0.00001, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];
