-- Token bucket: refilled with `number` tokens per period, up to the burst; it starts full or empty. The twin of
-- src/engine/algorithm/token_bucket.rs.
algorithms[#algorithms + 1] = bucket
