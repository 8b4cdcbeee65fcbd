//! Headers of record batches, magic 0, 1 and 2 alike, and every check that needs no record (facts 2.1, 2.4).

use crate::errors::Damage;

/// Offset and size field in front of everything else.
pub const LOG_OVERHEAD: usize = 12;
/// Bytes of a V2 batch before its records.
pub const V2_HEADER: usize = 61;
/// Smallest size field that any magic allows (a V0 record without key and value).
const SMALLEST_SIZE: i32 = 14;

/// Where the fields of a V2 header begin. Offset, length and magic lie there in V0 and V1 too.
pub mod field {
    pub const BASE_OFFSET: usize = 0;
    pub const LENGTH: usize = 8;
    pub const LEADER_EPOCH: usize = 12;
    pub const MAGIC: usize = 16;
    pub const CRC: usize = 17;
    /// Two bytes, and the first of those that the CRC covers. Kafka gives a meaning to bits of the second one only.
    pub const ATTRIBUTES: usize = 21;
    pub const LAST_OFFSET_DELTA: usize = 23;
    pub const BASE_TIMESTAMP: usize = 27;
    pub const MAX_TIMESTAMP: usize = 35;
    pub const PRODUCER_ID: usize = 43;
    pub const PRODUCER_EPOCH: usize = 51;
    pub const BASE_SEQUENCE: usize = 53;
    pub const RECORD_COUNT: usize = 57;
}

/// Bits of the attributes.
pub const CODEC_MASK: u8 = 0x07;
pub const LOG_APPEND_TIME: u8 = 0x08;
pub const TRANSACTIONAL: u8 = 0x10;
pub const CONTROL: u8 = 0x20;
const DELETE_HORIZON: u8 = 0x40;

/// One batch, or one V0/V1 entry. V0 and V1 have no producer, and only their last offset stands in the header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Byte position in the file.
    pub position: u64,
    /// All bytes of the batch.
    pub size: usize,
    pub magic: u8,
    pub crc: u32,
    /// The low byte; Kafka ignores the other one.
    pub attributes: u8,
    /// V0/V1: the offset field, so equal to `last_offset` (of a wrapper: that of its last inner record).
    pub base_offset: i64,
    pub last_offset: i64,
    pub leader_epoch: i32,
    /// V2: base timestamp or delete horizon. V1: the timestamp. V0: -1.
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    /// V2: the count field. V0/V1: 0, their records have to be counted.
    pub record_count: usize,
}

impl Header {
    pub fn codec(&self) -> u8 {
        self.attributes & CODEC_MASK
    }

    pub fn is_legacy(&self) -> bool {
        self.magic < 2
    }

    pub fn is_log_append_time(&self) -> bool {
        self.magic > 0 && self.attributes & LOG_APPEND_TIME != 0
    }

    pub fn is_transactional(&self) -> bool {
        self.magic >= 2 && self.attributes & TRANSACTIONAL != 0
    }

    pub fn is_control(&self) -> bool {
        self.magic >= 2 && self.attributes & CONTROL != 0
    }

    pub fn delete_horizon(&self) -> Option<i64> {
        (self.magic >= 2 && self.attributes & DELETE_HORIZON != 0).then_some(self.base_timestamp)
    }

    /// Attributes of a rewritten batch: the unused bits of the source are not carried over.
    pub fn rewritten_attributes(&self, horizon: bool) -> u8 {
        let kept = if self.is_legacy() {
            CODEC_MASK | LOG_APPEND_TIME
        } else {
            CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
        };
        // V0 has no timestamp type; it becomes create time.
        let mask = if self.magic == 0 { CODEC_MASK } else { kept };
        self.attributes & mask | if horizon { DELETE_HORIZON } else { 0 }
    }

    /// Attributes of the empty batch that stands for this one: neither codec nor horizon.
    pub fn emptied_attributes(&self) -> u8 {
        self.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

pub fn i16_at(bytes: &[u8], at: usize) -> Option<i16> {
    number(bytes, at).map(i16::from_be_bytes)
}

pub fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    number(bytes, at).map(i32::from_be_bytes)
}

pub fn i64_at(bytes: &[u8], at: usize) -> Option<i64> {
    number(bytes, at).map(i64::from_be_bytes)
}

/// Writes a field of a header.
#[inline(always)]
pub fn put(batch: &mut [u8], at: usize, bytes: &[u8]) {
    batch[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Whole size of the batch whose first 17 bytes are `front`, of which `left` bytes remain in the file.
pub fn batch_size(front: &[u8], left: u64) -> Result<usize, Damage> {
    let size =
        i32_at(front, field::LENGTH).ok_or("truncated: the file ends inside a batch header")?;
    if size < SMALLEST_SIZE {
        if front.iter().all(|&byte| byte == 0) {
            return Err("truncated: only zeros where a batch should be".into());
        }
        return Err(format!(
            "its length field is {size}, below the smallest possible {SMALLEST_SIZE}"
        )
        .into());
    }
    let size = size as usize + LOG_OVERHEAD;
    match front.get(field::MAGIC) {
        Some(0..=2) => {}
        Some(magic) => return Err(format!("unknown magic {}", *magic as i8).into()),
        None => return Err("truncated: the file ends inside a batch header".into()),
    }
    if size as u64 > left {
        return Err(
            format!("truncated: it needs {size} bytes and {left} are left in the file").into(),
        );
    }
    Ok(size)
}

/// Reads and checks the header and the CRC of one whole batch.
pub fn read(batch: &[u8], position: u64) -> Result<Header, Damage> {
    let short = || Damage::from("its length field is too small for its magic");
    let magic = *batch.get(field::MAGIC).ok_or_else(short)?;
    if magic == 2 {
        read_v2(batch, position)
    } else {
        read_legacy(batch, position, magic)
    }
}

fn read_v2(batch: &[u8], position: u64) -> Result<Header, Damage> {
    let Some((head, _)) = batch.split_at_checked(V2_HEADER) else {
        return Err(format!(
            "its {} bytes are fewer than the {V2_HEADER} of a header",
            batch.len()
        )
        .into());
    };
    let short = || Damage::from("truncated: the file ends inside a batch header");
    let crc = i32_at(head, field::CRC).ok_or_else(short)? as u32;
    let found = crc_fast::crc32_iscsi(&batch[field::ATTRIBUTES..]);
    if crc != found {
        return Err(Damage {
            reason: format!("its CRC-32C is {found:08x}, the header says {crc:08x}").into(),
            crc: Some((crc, found)),
        });
    }
    let base_offset = i64_at(head, field::BASE_OFFSET).ok_or_else(short)?;
    let last_delta = i32_at(head, field::LAST_OFFSET_DELTA).ok_or_else(short)?;
    let count = i32_at(head, field::RECORD_COUNT).ok_or_else(short)?;
    let attributes = head[field::ATTRIBUTES + 1];
    let codec = attributes & CODEC_MASK;
    if base_offset < 0 {
        return Err(format!("its base offset {base_offset} is negative").into());
    }
    if last_delta < 0 {
        return Err(format!("its last offset delta {last_delta} is negative").into());
    }
    let last_offset = base_offset
        .checked_add(i64::from(last_delta))
        .filter(|&last| last < i64::MAX);
    let last_offset = last_offset.ok_or("its last offset is beyond the largest possible one")?;
    if codec > 4 {
        return Err(format!("unknown compression codec {codec}").into());
    }
    if count < 0 {
        return Err(format!("its record count {count} is negative").into());
    }
    Ok(Header {
        position,
        size: batch.len(),
        magic: 2,
        crc,
        attributes,
        base_offset,
        last_offset,
        leader_epoch: i32_at(head, field::LEADER_EPOCH).ok_or_else(short)?,
        base_timestamp: i64_at(head, field::BASE_TIMESTAMP).ok_or_else(short)?,
        max_timestamp: i64_at(head, field::MAX_TIMESTAMP).ok_or_else(short)?,
        producer_id: i64_at(head, field::PRODUCER_ID).ok_or_else(short)?,
        producer_epoch: i16_at(head, field::PRODUCER_EPOCH).ok_or_else(short)?,
        base_sequence: i32_at(head, field::BASE_SEQUENCE).ok_or_else(short)?,
        record_count: count as usize,
    })
}

fn read_legacy(entry: &[u8], position: u64, magic: u8) -> Result<Header, Damage> {
    let smallest = LOG_OVERHEAD + if magic == 0 { 14 } else { 22 };
    if entry.len() < smallest {
        return Err(format!(
            "its {} bytes are fewer than the {smallest} of a magic {magic} record",
            entry.len()
        )
        .into());
    }
    let short = || Damage::from("truncated: the file ends inside a record header");
    let crc = i32_at(entry, 12).ok_or_else(short)? as u32;
    let found = crc32fast::hash(&entry[16..]);
    if crc != found {
        return Err(Damage {
            reason: format!("its CRC-32 is {found:08x}, the header says {crc:08x}").into(),
            crc: Some((crc, found)),
        });
    }
    let offset = i64_at(entry, 0).ok_or_else(short)?;
    if !(0..i64::MAX).contains(&offset) {
        return Err(format!("its offset {offset} is not possible").into());
    }
    let attributes = entry[17];
    let codec = attributes & CODEC_MASK;
    if codec > 3 {
        return Err(format!("compression codec {codec} is not possible with magic {magic}").into());
    }
    let timestamp = if magic == 0 {
        -1
    } else {
        i64_at(entry, 18).ok_or_else(short)?
    };
    Ok(Header {
        position,
        size: entry.len(),
        magic,
        crc,
        attributes,
        base_offset: offset,
        last_offset: offset,
        leader_epoch: -1,
        base_timestamp: timestamp,
        max_timestamp: timestamp,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        record_count: 0,
    })
}
