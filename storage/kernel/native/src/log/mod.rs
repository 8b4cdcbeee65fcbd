//! What the live log asks for: `admission`, `validate` and `tally` (batches of producers), `append` (them and the write in one call),
//! `areas` (record areas for batches that are written again), `lookup` (the place of a fetch), `timestamps` (that of a time), `scan` (recovery).
//!
//! Each file says where its twin in plain Python is.

pub mod admission;
pub mod append;
pub mod areas;
pub mod lookup;
pub mod scan;
pub mod tally;
pub mod timestamps;
pub mod validate;
