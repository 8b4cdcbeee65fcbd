//! One round of a clean over one partition: `round` holds what both passes share, `python` is the class that Python sees.
//!
//!     pass one   pass_one (what is asked of it), hashing (at a desk), mapping, filling, map; leaves dirty, bits
//!     pass two   pass_two (what is asked of it), planning, judging (at a desk: desk, rebuild), writing: output, index, stats
//!     both       reader (a segment's batches), transactions, ahead and pool (several threads), settings, progress

pub mod python;

mod ahead;
mod bits;
mod desk;
mod dirty;
mod filling;
mod hashing;
mod index;
mod judging;
mod map;
mod mapping;
mod output;
mod pass_one;
mod pass_two;
mod planning;
mod pool;
mod progress;
mod reader;
mod rebuild;
mod round;
mod settings;
mod stats;
mod transactions;
mod writing;
