//! The header of one batch, as recovery needs it, and what is wrong with it that needs no other batch to tell.

use crate::records::header::{field, i16_at, i32_at, i64_at, LOG_OVERHEAD, V2_HEADER};
use crate::records::varint::{read_varint, read_varlong};

/// First bytes of a header, with its length and magic.
const UP_TO_MAGIC: usize = field::MAGIC + 1;
const SMALLEST_LENGTH: i32 = 14;
/// Smallest batch of each magic.
const SMALLEST: [u64; 3] = [26, 34, V2_HEADER as u64];
/// In V0 and V1 alike.
const LEGACY_CRC: usize = 12;
const V1_TIMESTAMP: usize = 18;

/// Why reading stopped: position, base and last offset (-1 unknown), words, stored and computed CRC.
pub type Fault = (u64, i64, i64, String, Option<(u32, u32)>);

pub struct Head {
    /// Of the batch in the file, and its bytes in all.
    pub position: u64,
    pub total: u64,
    pub first: i64,
    pub last: i64,
    bytes: [u8; V2_HEADER],
}

impl Head {
    /// `bytes`: those at `position`, as many as a header has, or as there are; `left`: of the file from there on.
    #[inline]
    pub fn read(bytes: &[u8], position: u64, left: u64) -> Result<Head, Fault> {
        let fault = |first: i64, words: String| Err((position, first, -1, words, None));
        if left < UP_TO_MAGIC as u64 || bytes.len() < UP_TO_MAGIC {
            return fault(-1, format!("truncated, {left} bytes are left of a header"));
        }
        let first = i64_at(bytes, field::BASE_OFFSET).unwrap_or(-1);
        let length = i32_at(bytes, field::LENGTH).unwrap_or(-1);
        if length < SMALLEST_LENGTH {
            return if bytes[..UP_TO_MAGIC].iter().all(|&byte| byte == 0) {
                fault(-1, "truncated, only zeros where a batch should be".into())
            } else {
                fault(first, format!("its length field is {length}"))
            };
        }
        let magic = bytes[field::MAGIC];
        let total = length as u64 + LOG_OVERHEAD as u64;
        if total > left {
            let words = format!("truncated, {left} of its {total} bytes are there");
            return fault(first, words);
        }
        let Some(&least) = SMALLEST.get(usize::from(magic)) else {
            return fault(first, format!("unknown magic {magic}"));
        };
        if total < least || (bytes.len() as u64) < least {
            let words = format!("its length field is {length}, too small for magic {magic}");
            return fault(first, words);
        }
        let mut head = Head {
            position,
            total,
            first,
            last: first,
            bytes: [0; V2_HEADER],
        };
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        if head.is_current() {
            head.last = first.wrapping_add(i64::from(head.i32_at(field::LAST_OFFSET_DELTA)));
        }
        Ok(head)
    }

    pub fn fault(&self, words: String) -> Fault {
        (self.position, self.first, self.last, words, None)
    }

    fn i32_at(&self, at: usize) -> i32 {
        i32_at(&self.bytes, at).unwrap_or(-1)
    }

    fn i64_at(&self, at: usize) -> i64 {
        i64_at(&self.bytes, at).unwrap_or(-1)
    }

    /// Whether it is of magic 2; others have neither producer nor epoch.
    pub fn is_current(&self) -> bool {
        self.bytes[field::MAGIC] == 2
    }

    pub fn stored_crc(&self) -> u32 {
        let at = if self.is_current() {
            field::CRC
        } else {
            LEGACY_CRC
        };
        self.i32_at(at) as u32
    }

    /// Position of the first byte that the CRC covers.
    pub fn crc_from(&self) -> u64 {
        let at = if self.is_current() {
            field::ATTRIBUTES
        } else {
            LEGACY_CRC + 4
        };
        self.position + at as u64
    }

    pub fn end(&self) -> u64 {
        self.position + self.total
    }

    /// The largest of its records; -1: it has none.
    pub fn timestamp(&self) -> i64 {
        match self.bytes[field::MAGIC] {
            0 => -1,
            1 => self.i64_at(V1_TIMESTAMP),
            _ => self.i64_at(field::MAX_TIMESTAMP),
        }
    }

    pub fn epoch(&self) -> i32 {
        self.i32_at(field::LEADER_EPOCH)
    }

    pub fn producer_id(&self) -> i64 {
        self.i64_at(field::PRODUCER_ID)
    }

    /// Producer epoch and base sequence as they stand there.
    pub fn epoch_and_sequence(&self) -> &[u8] {
        &self.bytes[field::PRODUCER_EPOCH..field::RECORD_COUNT]
    }

    /// The byte whose bits have a meaning.
    pub fn attributes(&self) -> u8 {
        self.bytes[field::ATTRIBUTES + 1]
    }

    pub fn record_count(&self) -> i32 {
        self.i32_at(field::RECORD_COUNT)
    }
}

/// (type, coordinator epoch) of the marker whose record starts at `bytes[0]`; None where it is none.
pub fn marker(bytes: &[u8]) -> Option<(i16, i32)> {
    let (mut at, mut canonical) = (0, true);
    read_varint(bytes, &mut at, &mut canonical)?;
    at += 1;
    read_varlong(bytes, &mut at, &mut canonical)?;
    read_varint(bytes, &mut at, &mut canonical)?;
    let key_length = usize::try_from(read_varint(bytes, &mut at, &mut canonical)?).ok()?;
    if key_length < 4 || i16_at(bytes, at)? < 0 {
        return None;
    }
    let kind = i16_at(bytes, at + 2)?;
    at = at.checked_add(key_length)?;
    let value_length = read_varint(bytes, &mut at, &mut canonical)?;
    if !(0..=1).contains(&kind) || value_length < 6 || i16_at(bytes, at)? < 0 {
        return None;
    }
    Some((kind, i32_at(bytes, at + 2)?))
}
