//! Message formats 0 and 1: single records and compressed wrappers around inner records (facts 2.4).

use crate::errors::Damage;
use crate::records::header::{i32_at, i64_at, Header, CODEC_MASK, LOG_OVERHEAD};
use crate::records::record::{Fields, Record};

/// Reads the entry at `at` of `area`, all lengths checked. `(record, attributes)`; its offset is as stored.
fn read_entry(area: &[u8], at: usize) -> Result<(Record, u8), Damage> {
    let cut = || Damage::from("an inner record is cut short");
    let offset = i64_at(area, at).ok_or_else(cut)?;
    let size = i32_at(area, at + 8).ok_or_else(cut)?;
    let start = at + LOG_OVERHEAD;
    let end = usize::try_from(size)
        .ok()
        .map(|size| start + size)
        .filter(|&end| end <= area.len());
    let end = end.ok_or("the length of a record reaches over the end of its batch")?;
    let bytes = &area[..end];
    let misfit = || Damage::from("the fields of a record do not fill its length");
    let magic = *bytes.get(start + 4).ok_or_else(misfit)?;
    let attributes = *bytes.get(start + 5).ok_or_else(misfit)?;
    let mut next = start + 6;
    let timestamp = match magic {
        0 => -1,
        1 => {
            next += 8;
            i64_at(bytes, next - 8).ok_or_else(misfit)?
        }
        _ => return Err(format!("an inner record has magic {}", magic as i8).into()),
    };
    let key_length = i32_at(bytes, next).ok_or_else(misfit)?;
    let key = next + 4;
    next = key + key_length.max(0) as usize;
    let value_length = i32_at(bytes, next).ok_or_else(misfit)?;
    let value = next + 4;
    if value + value_length.max(0) as usize != end {
        return Err(misfit());
    }
    let fields = Fields {
        key,
        key_length,
        value,
        value_length,
        end,
        ..Fields::default()
    };
    Ok((
        Record {
            offset,
            timestamp,
            fields,
        },
        attributes,
    ))
}

/// The record that the whole `entry` is; for a wrapper its value is the compressed inner record set.
pub fn read_outer(entry: &[u8]) -> Result<Record, Damage> {
    let (record, _) = read_entry(entry, 0)?;
    if record.fields.end != entry.len() {
        return Err("bytes follow its record".into());
    }
    Ok(record)
}

/// The inner record at `at` of a wrapper's decompressed value, its offset as stored, its timestamp the effective one.
pub fn read_inner(wrapper: &Header, area: &[u8], at: usize) -> Result<Record, Damage> {
    let (mut record, attributes) = read_entry(area, at)?;
    if attributes & CODEC_MASK != 0 {
        return Err("an inner record is compressed itself".into());
    }
    // An inner V0 record has no timestamp whatever its wrapper says.
    if wrapper.is_log_append_time() && area.get(at + 16) == Some(&1) {
        record.timestamp = wrapper.max_timestamp;
    }
    Ok(record)
}

/// What makes the stored offsets of the inner records absolute. Those of V0 are so already; those of V1 are relative, and
/// the wrapper has that of the last one, unless its client left it at 0.
pub fn inner_base(wrapper: &Header, area: &[u8]) -> Result<i64, Damage> {
    let (mut at, mut last) = (0, None);
    while at < area.len() {
        let (record, _) = read_entry(area, at)?;
        at = record.fields.end;
        last = Some(record.offset);
    }
    let last = last.ok_or("it is compressed and holds no record")?;
    if wrapper.magic == 0 || wrapper.last_offset == 0 {
        return Ok(0);
    }
    let base = wrapper
        .last_offset
        .checked_sub(last)
        .filter(|&base| base >= 0);
    Ok(base.ok_or("its last inner offset is beyond that of the wrapper")?)
}
