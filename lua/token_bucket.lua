-- Token bucket: refilled with the number per period, up to the burst; it starts full or empty. The twin of
-- src/algorithm/token_bucket.rs.
algorithms[#algorithms + 1] = bucket
