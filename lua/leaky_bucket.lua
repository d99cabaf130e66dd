-- Leaky bucket: `number` hits leak out per period; hits beyond the burst are delayed, by up to max_delay. The twin of
-- src/engine/algorithm/leaky_bucket.rs.
algorithms[#algorithms + 1] = bucket
