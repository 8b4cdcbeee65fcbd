//! Records inside a batch: those of V2 read and checked one by one, and written again (facts 2.2).

use crate::records::varint::{self, read_varint, read_varlong};

/// Where the fields of one V2 record lie in the (decompressed) record area.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fields {
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    /// Start of the offset delta: from here on a canonical record is copied as it is.
    pub tail: usize,
    pub key: usize,
    /// Below 0: no key.
    pub key_length: i32,
    pub value: usize,
    /// Below 0: no value, a tombstone.
    pub value_length: i32,
    /// Start of the first header.
    pub headers: usize,
    pub header_count: i32,
    /// First byte after the record.
    pub end: usize,
    /// Its bytes from `tail` on are what Kafka would write.
    pub canonical: bool,
}

/// One record of any magic; the positions of `fields` count from the start of its batch's area.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub offset: i64,
    pub timestamp: i64,
    pub fields: Fields,
}

impl Record {
    #[inline(always)]
    pub fn key<'a>(&self, area: &'a [u8]) -> Option<&'a [u8]> {
        let length = usize::try_from(self.fields.key_length).ok()?;
        area.get(self.fields.key..self.fields.key + length)
    }

    #[inline(always)]
    pub fn is_tombstone(&self) -> bool {
        self.fields.value_length < 0
    }
}

pub const OUTSIDE: &str = "a record reaches over the end of its batch";
pub const MISFIT: &str = "the fields of a record do not fill its length";

/// Start and end of the body of the record at `at`.
#[inline(always)]
pub fn body(area: &[u8], at: usize) -> Result<(usize, usize), &'static str> {
    let (mut start, mut canonical) = (at, true);
    let length = read_varint(area, &mut start, &mut canonical)
        .ok_or("the length of a record is unreadable")?;
    let length = usize::try_from(length).map_err(|_| "the length of a record is negative")?;
    let end = start
        .checked_add(length)
        .filter(|&end| end <= area.len())
        .ok_or(OUTSIDE)?;
    Ok((start, end))
}

/// Reads and checks all of the record at `at`.
#[inline(always)]
pub fn read(area: &[u8], at: usize) -> Result<Fields, &'static str> {
    let (start, end) = body(area, at)?;
    let bytes = &area[..end];
    // Kafka always writes record attributes 0.
    let mut canonical = *bytes.get(start).ok_or(MISFIT)? == 0;
    let mut next = start + 1;
    let mut ignored = true;
    let timestamp_delta = read_varlong(bytes, &mut next, &mut ignored).ok_or(MISFIT)?;
    let tail = next;
    let offset_delta = read_varint(bytes, &mut next, &mut canonical).ok_or(MISFIT)?;
    let key_length = read_varint(bytes, &mut next, &mut canonical).ok_or(MISFIT)?;
    let key = next;
    next = skip(next, key_length, &mut canonical);
    let value_length = read_varint(bytes, &mut next, &mut canonical).ok_or(MISFIT)?;
    let value = next;
    next = skip(next, value_length, &mut canonical);
    let header_count = read_varint(bytes, &mut next, &mut canonical).ok_or(MISFIT)?;
    let headers = next;
    if header_count != 0 {
        walk_headers(bytes, &mut next, header_count, &mut canonical)?;
    }
    if next != end {
        return Err(MISFIT);
    }
    Ok(Fields {
        timestamp_delta,
        offset_delta,
        tail,
        key,
        key_length,
        value,
        value_length,
        headers,
        header_count,
        end,
        canonical,
    })
}

/// Position after a field of `length` bytes; a reader at a position past the end fails, so no check is needed here.
#[inline(always)]
fn skip(at: usize, length: i32, canonical: &mut bool) -> usize {
    *canonical &= length >= -1;
    at + length.max(0) as usize
}

#[inline(never)]
fn walk_headers(
    bytes: &[u8],
    next: &mut usize,
    count: i32,
    canonical: &mut bool,
) -> Result<(), &'static str> {
    if count < 0 {
        return Err("the header count of a record is negative");
    }
    for _ in 0..count {
        let key = header_key(bytes, next, canonical)?;
        *canonical &= std::str::from_utf8(key).is_ok();
        header_value(bytes, next, canonical)?;
    }
    Ok(())
}

fn header_key<'a>(
    bytes: &'a [u8],
    next: &mut usize,
    canonical: &mut bool,
) -> Result<&'a [u8], &'static str> {
    let length = read_varint(bytes, next, canonical).ok_or(MISFIT)?;
    let length = usize::try_from(length).map_err(|_| "the key of a record header is null")?;
    let key = bytes.get(*next..*next + length).ok_or(MISFIT)?;
    *next += length;
    Ok(key)
}

fn header_value<'a>(
    bytes: &'a [u8],
    next: &mut usize,
    canonical: &mut bool,
) -> Result<Option<&'a [u8]>, &'static str> {
    let length = read_varint(bytes, next, canonical).ok_or(MISFIT)?;
    *canonical &= length >= -1;
    let Ok(length) = usize::try_from(length) else {
        return Ok(None);
    };
    let value = bytes.get(*next..*next + length).ok_or(MISFIT)?;
    *next += length;
    Ok(Some(value))
}

/// Appends a canonical record with another timestamp delta; `tail` starts at its offset delta.
#[inline(always)]
pub fn push_tail(out: &mut Vec<u8>, timestamp_delta: i64, tail: &[u8]) {
    let mut front = [0u8; 21];
    let length = 1 + varint::length(timestamp_delta) + tail.len();
    let mut used = varint::put(&mut front[..10], length as i64) + 1;
    used += varint::put(&mut front[used..], timestamp_delta);
    out.extend_from_slice(&front[..used]);
    out.extend_from_slice(tail);
}

/// Appends a record field by field, as Kafka writes it. Returns false when its bytes cannot be read again.
pub fn push_fields(
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
    area: &[u8],
    record: &Fields,
    timestamp_delta: i64,
    offset_delta: i64,
) -> bool {
    scratch.clear();
    varint::push(scratch, offset_delta);
    let complete = push_bytes(scratch, area, record.key, record.key_length)
        && push_bytes(scratch, area, record.value, record.value_length)
        && push_headers(scratch, area, record).is_ok();
    push_tail(out, timestamp_delta, scratch);
    complete
}

fn push_bytes(out: &mut Vec<u8>, area: &[u8], start: usize, length: i32) -> bool {
    if length < 0 {
        varint::push(out, -1);
        return true;
    }
    varint::push(out, i64::from(length));
    match area.get(start..start + length as usize) {
        Some(bytes) => out.extend_from_slice(bytes),
        None => return false,
    }
    true
}

fn push_headers(out: &mut Vec<u8>, area: &[u8], record: &Fields) -> Result<(), &'static str> {
    varint::push(out, i64::from(record.header_count));
    let (mut next, mut canonical) = (record.headers, true);
    for _ in 0..record.header_count {
        // Kafka holds header keys as text: bytes that are not UTF-8 become replacement characters.
        let key = String::from_utf8_lossy(header_key(area, &mut next, &mut canonical)?);
        varint::push(out, key.len() as i64);
        out.extend_from_slice(key.as_bytes());
        match header_value(area, &mut next, &mut canonical)? {
            None => varint::push(out, -1),
            Some(value) => {
                varint::push(out, value.len() as i64);
                out.extend_from_slice(value);
            }
        }
    }
    Ok(())
}
