//! What a round is told, once for both of its passes (RoundSettings of storage/kernel/interface.py).

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub first_dirty_offset: i64,
    pub high_watermark: i64,
    pub now_ms: i64,
    pub delete_retention_ms: i64,
    pub index_interval_bytes: i64,
    pub map_memory_bytes: u64,
    pub map_load_factor: f64,
    pub kafka_map: bool,
    /// That work on the round; 1: only the calling one.
    pub threads: usize,
    /// Bytes that a thread is given at once.
    pub chunk_bytes: usize,
}
