//! Batches and their records, every magic: `header` (of a batch), `batch` and `record` (what is inside), `legacy` (V0 and V1),
//! `codecs` with `lz4` and `snappy`, `stream` (what decompresses to very much), `varint`. Nothing in here knows of cleaning or of a log.

pub mod batch;
pub mod codecs;
pub mod header;
pub mod record;
pub mod stream;
pub mod varint;

pub mod lz4;

mod legacy;
mod snappy;
mod step;
