//! What can go wrong, before it becomes an exception of `compactd.config.errors`.

use std::borrow::Cow;
use std::ffi::OsString;

/// A fault inside one batch. The reader of the batch adds file, position and offsets.
#[derive(Debug)]
pub struct Damage {
    pub reason: Cow<'static, str>,
    /// Stored and computed CRC, where they are the fault.
    pub crc: Option<(u32, u32)>,
}

impl Damage {
    /// `limit`: bytes that decompressed records may have.
    pub fn too_large(limit: usize) -> Damage {
        format!("its records decompress to more than {limit} bytes").into()
    }
}

impl From<&'static str> for Damage {
    fn from(reason: &'static str) -> Self {
        Damage {
            reason: Cow::Borrowed(reason),
            crc: None,
        }
    }
}

impl From<String> for Damage {
    fn from(reason: String) -> Self {
        Damage {
            reason: Cow::Owned(reason),
            crc: None,
        }
    }
}

#[derive(Debug)]
pub enum KernelError {
    /// CorruptBatchError.
    Corrupt {
        path: OsString,
        position: u64,
        base_offset: i64,
        last_offset: i64,
        damage: Damage,
    },
    /// StorageIOError.
    Io {
        path: OsString,
        action: &'static str,
        reason: String,
    },
    /// OffsetOverflowError; `source` is the index of the source segment in its group.
    Overflow {
        path: OsString,
        offset: i64,
        base_offset: i64,
        source: usize,
    },
    /// FaultError.
    Fault { path: OsString, reason: String },
    /// The progress callback raised; its exception is kept by the caller.
    Stopped,
}

pub type Outcome<T> = Result<T, KernelError>;
