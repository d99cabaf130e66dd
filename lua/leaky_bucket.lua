-- Leaky bucket: the number leaks per period, and what does not pass at once waits for its turn, up to max_delay.
-- The twin of src/algorithm/leaky_bucket.rs.
algorithms[#algorithms + 1] = bucket
