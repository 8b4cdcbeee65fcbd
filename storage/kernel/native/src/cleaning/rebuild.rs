//! Writing a batch from the records that are kept, or the empty batch that stands for one (facts 5.7).

use crate::errors::Damage;
use crate::records::codecs::Codecs;
use crate::records::header::{field, put, Header, LOG_OVERHEAD, V2_HEADER};
use crate::records::record::{self, Record};

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
    fn new(
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

    fn done(self) -> Rebuilt {
        Rebuilt {
            base_timestamp: self.base_timestamp.unwrap_or(-1),
            max_timestamp: self.max_timestamp,
            last_offset: self.last_offset,
            base_offset: self.base_offset.unwrap_or(-1),
            count: self.count,
        }
    }
}

/// Writes batches again, with memory that is kept from batch to batch.
#[derive(Default)]
pub struct Rewriter {
    raw: Vec<u8>,
    encoded: Vec<u8>,
}

impl Rewriter {
    /// Appends the V2 batch that `source` becomes to `out`, with the records that `push` gives. `horizon`: of its deletion.
    #[inline(always)]
    pub fn write(
        &mut self,
        codecs: &mut Codecs,
        source: &Header,
        horizon: Option<i64>,
        out: &mut Vec<u8>,
        push: impl FnOnce(&mut Rebuild) -> Result<(), Damage>,
    ) -> Result<(Rebuilt, Written), Damage> {
        let horizon = horizon.filter(|&horizon| horizon >= 0);
        let base_offset = (!source.is_legacy()).then_some(source.base_offset);
        let start = out.len();
        out.resize(start + V2_HEADER, 0);
        let compressed = source.codec() != 0;
        let target = if compressed {
            self.raw.clear();
            &mut self.raw
        } else {
            &mut *out
        };
        let mut rebuild = Rebuild::new(target, &mut self.encoded, base_offset, horizon);
        push(&mut rebuild)?;
        let rebuilt = rebuild.done();
        if compressed {
            codecs.compress(source.codec(), &self.raw, out)?;
        }
        let written = write_header(out, start, source, &rebuilt, horizon.is_some())?;
        Ok((rebuilt, written))
    }
}

/// Last offset, max timestamp and bytes of a batch that was written.
pub type Written = (i64, i64, usize);

/// Fills the header at `start`, whose records follow it to the end of `out`.
fn write_header(
    out: &mut [u8],
    start: usize,
    source: &Header,
    rebuilt: &Rebuilt,
    horizon: bool,
) -> Result<Written, Damage> {
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
    let batch = &mut out[start..];
    let size = batch.len();
    if i32::try_from(size).is_err() {
        return Err("rewritten it would be larger than 2147483647 bytes".into());
    }
    let last_delta = i32::try_from(last_offset - rebuilt.base_offset)
        .map_err(|_| "its offsets are further than 2147483647 apart")?;
    let attributes = source.rewritten_attributes(horizon);
    complete(
        batch,
        source,
        attributes,
        last_delta,
        rebuilt,
        max_timestamp,
    );
    Ok((last_offset, max_timestamp, size))
}

/// The batch without records that keeps the producer's sequence, or the log's end, of `source`.
pub fn empty_batch(source: &Header) -> [u8; V2_HEADER] {
    let mut batch = [0u8; V2_HEADER];
    let nothing = Rebuilt {
        base_timestamp: -1,
        max_timestamp: -1,
        last_offset: source.last_offset,
        base_offset: source.base_offset,
        count: 0,
    };
    let (attributes, last_delta) = (
        source.emptied_attributes(),
        (source.last_offset - source.base_offset) as i32,
    );
    complete(
        &mut batch,
        source,
        attributes,
        last_delta,
        &nothing,
        source.max_timestamp,
    );
    batch
}

/// Writes the header of `batch`, behind which its records are: of them, and of the batch they come from.
fn complete(
    batch: &mut [u8],
    source: &Header,
    attributes: u8,
    last_delta: i32,
    rebuilt: &Rebuilt,
    max_timestamp: i64,
) {
    let length = (batch.len() - LOG_OVERHEAD) as i32;
    put(
        batch,
        field::BASE_OFFSET,
        &rebuilt.base_offset.to_be_bytes(),
    );
    put(batch, field::LENGTH, &length.to_be_bytes());
    put(
        batch,
        field::LEADER_EPOCH,
        &source.leader_epoch.to_be_bytes(),
    );
    put(batch, field::MAGIC, &[2]);
    put(batch, field::ATTRIBUTES, &[0, attributes]);
    put(batch, field::LAST_OFFSET_DELTA, &last_delta.to_be_bytes());
    put(
        batch,
        field::BASE_TIMESTAMP,
        &rebuilt.base_timestamp.to_be_bytes(),
    );
    put(batch, field::MAX_TIMESTAMP, &max_timestamp.to_be_bytes());
    put(batch, field::PRODUCER_ID, &source.producer_id.to_be_bytes());
    put(
        batch,
        field::PRODUCER_EPOCH,
        &source.producer_epoch.to_be_bytes(),
    );
    put(
        batch,
        field::BASE_SEQUENCE,
        &source.base_sequence.to_be_bytes(),
    );
    put(batch, field::RECORD_COUNT, &rebuilt.count.to_be_bytes());
    let crc = crc_fast::crc32_iscsi(&batch[field::ATTRIBUTES..]);
    put(batch, field::CRC, &crc.to_be_bytes());
}
