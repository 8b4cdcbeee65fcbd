//! The records of a batch of any magic, decompressed, walked and checked.

use crate::errors::Damage;
use crate::records::codecs::Codecs;
use crate::records::header::{Header, V2_HEADER};
use crate::records::legacy;
use crate::records::record::{self, Record};

/// Memory that decompressed records take, kept from batch to batch.
#[derive(Default)]
pub struct Scratch {
    bytes: Vec<u8>,
}

/// Scratch above this is given back after the batch that needed it.
const KEPT: usize = 16 << 20;

impl Scratch {
    pub fn trim(&mut self) {
        if self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
    }
}

/// The bytes that hold the records: part of the batch, or decompressed into `scratch`.
#[inline]
pub fn area<'a>(
    header: &Header,
    batch: &'a [u8],
    codecs: &mut Codecs,
    scratch: &'a mut Scratch,
) -> Result<&'a [u8], Damage> {
    if header.is_legacy() {
        if header.codec() == 0 {
            return Ok(batch);
        }
        let outer = legacy::read_outer(batch)?.fields;
        let inner = batch
            .get(outer.value..outer.end)
            .filter(|_| outer.value_length >= 0);
        let inner = inner.ok_or("it is compressed and has no value")?;
        codecs.decompress(header.codec(), header.magic, inner, &mut scratch.bytes)?;
        return Ok(&scratch.bytes);
    }
    let records = batch.get(V2_HEADER..).unwrap_or(&[]);
    if header.codec() == 0 || header.record_count == 0 {
        return Ok(records);
    }
    codecs.decompress(header.codec(), header.magic, records, &mut scratch.bytes)?;
    Ok(&scratch.bytes)
}

/// Calls `each` with every record in turn, all of it checked.
#[inline(always)]
pub fn walk(header: &Header, area: &[u8], mut each: impl FnMut(&Record)) -> Result<(), Damage> {
    if header.is_legacy() {
        return walk_legacy(header, area, each);
    }
    let fixed_timestamp = header.is_log_append_time().then_some(header.max_timestamp);
    let last_delta = header.last_offset - header.base_offset;
    let (mut at, mut previous) = (0, -1i64);
    for _ in 0..header.record_count {
        let fields = record::read(area, at)?;
        let delta = i64::from(fields.offset_delta);
        if delta <= previous || delta > last_delta {
            return Err("the offset of a record is out of order or outside its batch".into());
        }
        previous = delta;
        at = fields.end;
        let timestamp =
            fixed_timestamp.unwrap_or(header.base_timestamp.wrapping_add(fields.timestamp_delta));
        each(&Record {
            offset: header.base_offset + delta,
            timestamp,
            fields,
        });
    }
    if at != area.len() {
        return Err(format!("{} bytes follow its last record", area.len() - at).into());
    }
    Ok(())
}

fn walk_legacy(header: &Header, area: &[u8], mut each: impl FnMut(&Record)) -> Result<(), Damage> {
    if header.codec() == 0 {
        each(&legacy::read_outer(area)?);
        return Ok(());
    }
    let base = legacy::inner_base(header, area)?;
    // Some clients left the wrapper's offset at 0: then it does not tell the last one.
    let last = if header.last_offset == 0 {
        i64::MAX
    } else {
        header.last_offset
    };
    let (mut at, mut previous) = (0, -1);
    while at < area.len() {
        let mut record = legacy::read_inner(header, area, at)?;
        record.offset = record.offset.wrapping_add(base);
        if record.offset <= previous || record.offset > last {
            return Err(
                "the offset of an inner record is out of order or beyond that of its wrapper"
                    .into(),
            );
        }
        previous = record.offset;
        at = record.fields.end;
        each(&record);
    }
    Ok(())
}

/// What a control batch says of its producer's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    Abort,
    Commit,
    /// Anything else a control record may be; always kept.
    Other,
}

/// What the first record of a control batch says; None for an empty batch. All of its records are checked.
pub fn marker(
    header: &Header,
    batch: &[u8],
    codecs: &mut Codecs,
    scratch: &mut Scratch,
) -> Result<Option<Marker>, Damage> {
    let area = area(header, batch, codecs, scratch)?;
    let mut first = None;
    walk(header, area, |record| {
        first.get_or_insert_with(|| {
            record
                .key(area)
                .and_then(|key| Some([*key.first()?, *key.get(1)?, *key.get(2)?, *key.get(3)?]))
        });
    })?;
    match first {
        None => Ok(None),
        Some(None) => Err("the key of its control record is shorter than 4 bytes".into()),
        Some(Some([high, _, _, _])) if high >= 0x80 => {
            Err("the key of its control record has a negative version".into())
        }
        Some(Some([_, _, 0, 0])) => Ok(Some(Marker::Abort)),
        Some(Some([_, _, 0, 1])) => Ok(Some(Marker::Commit)),
        Some(Some(_)) => Ok(Some(Marker::Other)),
    }
}
