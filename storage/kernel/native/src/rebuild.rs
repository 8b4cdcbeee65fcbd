//! Writing a batch from the records that are kept, or the empty batch that stands for one (facts 5.7).

use crate::batch::Record;
use crate::errors::Damage;
use crate::header::{Header, V2_HEADER};
use crate::record;

/// Collects the kept records of one batch.
pub struct Rebuild<'a> {
    /// Where records go: behind the header in the output, or aside when they are compressed afterwards.
    out: &'a mut Vec<u8>,
    scratch: &'a mut Vec<u8>,
    base_offset: Option<i64>,
    base_timestamp: Option<i64>,
    max_timestamp: i64,
    last_offset: i64,
    count: u32,
}

/// The fields of the header that depend on the records.
#[derive(Clone, Copy, Debug)]
pub struct Rebuilt {
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    /// Offset of the last record that was kept.
    pub last_offset: i64,
    pub base_offset: i64,
    pub count: u32,
}

impl<'a> Rebuild<'a> {
    /// `horizon` becomes the base timestamp; otherwise the first record's is. So it is with the base offset.
    pub fn new(
        out: &'a mut Vec<u8>,
        scratch: &'a mut Vec<u8>,
        base_offset: Option<i64>,
        horizon: Option<i64>,
    ) -> Rebuild<'a> {
        Rebuild {
            out,
            scratch,
            base_offset,
            base_timestamp: horizon,
            max_timestamp: -1,
            last_offset: -1,
            count: 0,
        }
    }

    /// Timestamp delta of the next record.
    #[inline(always)]
    fn next(&mut self, offset: i64, timestamp: i64) -> Result<i64, Damage> {
        if timestamp < -1 {
            return Err(format!("the record at offset {offset} has the negative timestamp {timestamp} and cannot be written again").into());
        }
        self.base_offset.get_or_insert(offset);
        let base = *self.base_timestamp.get_or_insert(timestamp);
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.last_offset = offset;
        self.count += 1;
        Ok(timestamp.wrapping_sub(base))
    }

    /// A canonical V2 record; `tail` is what follows its timestamp.
    #[inline(always)]
    pub fn push_tail(&mut self, offset: i64, timestamp: i64, tail: &[u8]) -> Result<(), Damage> {
        let delta = self.next(offset, timestamp)?;
        record::push_tail(self.out, delta, tail);
        Ok(())
    }

    pub fn push(&mut self, area: &[u8], record: &Record) -> Result<(), Damage> {
        let fields = &record.fields;
        if fields.canonical {
            let tail = area.get(fields.tail..fields.end).unwrap_or(&[]);
            return self.push_tail(record.offset, record.timestamp, tail);
        }
        let delta = self.next(record.offset, record.timestamp)?;
        if !record::push_fields(
            self.out,
            self.scratch,
            area,
            fields,
            delta,
            record.offset - self.base_offset.unwrap_or(record.offset),
        ) {
            return Err("a record could not be read again".into());
        }
        Ok(())
    }

    pub fn done(self) -> Rebuilt {
        Rebuilt {
            base_timestamp: self.base_timestamp.unwrap_or(-1),
            max_timestamp: self.max_timestamp,
            last_offset: self.last_offset,
            base_offset: self.base_offset.unwrap_or(-1),
            count: self.count,
        }
    }
}

/// Fills the header at `start`, whose records follow it to the end of `out`. The batch's last offset and its size.
pub fn write_header(
    out: &mut [u8],
    start: usize,
    source: &Header,
    rebuilt: &Rebuilt,
    horizon: bool,
) -> Result<(i64, i64, usize), Damage> {
    let (last_offset, max_timestamp) = (
        if source.is_legacy() {
            rebuilt.last_offset
        } else {
            source.last_offset
        },
        if source.is_log_append_time() {
            source.max_timestamp
        } else {
            rebuilt.max_timestamp
        },
    );
    let size = out.len() - start;
    let batch = &mut out[start..];
    let length =
        i32::try_from(size).map_err(|_| "rewritten it would be larger than 2147483647 bytes")? - 12;
    let delta = i32::try_from(last_offset - rebuilt.base_offset)
        .map_err(|_| "its offsets are further than 2147483647 apart")?;
    put(batch, 0, &rebuilt.base_offset.to_be_bytes());
    put(batch, 8, &length.to_be_bytes());
    put(batch, 12, &source.leader_epoch.to_be_bytes());
    put(batch, 16, &[2]);
    put(batch, 21, &[0, source.rewritten_attributes(horizon)]);
    put(batch, 23, &delta.to_be_bytes());
    put(batch, 27, &rebuilt.base_timestamp.to_be_bytes());
    put(batch, 35, &max_timestamp.to_be_bytes());
    put(batch, 43, &source.producer_id.to_be_bytes());
    put(batch, 51, &source.producer_epoch.to_be_bytes());
    put(batch, 53, &source.base_sequence.to_be_bytes());
    put(batch, 57, &rebuilt.count.to_be_bytes());
    let crc = crc_fast::crc32_iscsi(&batch[21..]);
    put(batch, 17, &crc.to_be_bytes());
    Ok((last_offset, max_timestamp, size))
}

/// The batch without records that keeps the producer's sequence, or the log's end, of `source`.
pub fn empty_batch(source: &Header) -> [u8; V2_HEADER] {
    let mut batch = [0u8; V2_HEADER];
    put(&mut batch, 0, &source.base_offset.to_be_bytes());
    put(&mut batch, 8, &(V2_HEADER as i32 - 12).to_be_bytes());
    put(&mut batch, 12, &source.leader_epoch.to_be_bytes());
    put(&mut batch, 16, &[2]);
    put(&mut batch, 21, &[0, source.emptied_attributes()]);
    put(
        &mut batch,
        23,
        &((source.last_offset - source.base_offset) as i32).to_be_bytes(),
    );
    put(&mut batch, 27, &(-1i64).to_be_bytes());
    put(&mut batch, 35, &source.max_timestamp.to_be_bytes());
    put(&mut batch, 43, &source.producer_id.to_be_bytes());
    put(&mut batch, 51, &source.producer_epoch.to_be_bytes());
    put(&mut batch, 53, &source.base_sequence.to_be_bytes());
    let crc = crc_fast::crc32_iscsi(&batch[21..]);
    put(&mut batch, 17, &crc.to_be_bytes());
    batch
}

#[inline(always)]
fn put(batch: &mut [u8], at: usize, bytes: &[u8]) {
    batch[at..at + bytes.len()].copy_from_slice(bytes);
}
