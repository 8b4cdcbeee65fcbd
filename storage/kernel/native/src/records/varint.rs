//! Zig-zag variable-length integers of message format 2 (Kafka's ByteUtils), read as Kafka reads them.
//!
//! A reader accepts encodings that are longer than necessary, as Kafka does; `canonical` is cleared for them, because
//! a rewritten record carries the shortest form.

/// Reads a signed 32-bit varint at `*at`. None: it runs over the end of `bytes` or over five bytes.
#[inline(always)]
pub fn read_varint(bytes: &[u8], at: &mut usize, canonical: &mut bool) -> Option<i32> {
    let first = *bytes.get(*at)?;
    if first < 0x80 {
        *at += 1;
        return Some(i32::from(first >> 1) ^ -i32::from(first & 1));
    }
    let second = *bytes.get(*at + 1)?;
    if second < 0x80 && second != 0 {
        *at += 2;
        let raw = u32::from(first & 0x7f) | u32::from(second) << 7;
        return Some((raw >> 1) as i32 ^ -((raw & 1) as i32));
    }
    read_varint_slowly(bytes, at, canonical)
}

#[inline(never)]
fn read_varint_slowly(bytes: &[u8], at: &mut usize, canonical: &mut bool) -> Option<i32> {
    let mut raw = 0u32;
    for i in 0..5 {
        let byte = *bytes.get(*at + i)?;
        raw |= u32::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *canonical &= byte != 0 && (i < 4 || byte < 0x10);
            *at += i + 1;
            return Some((raw >> 1) as i32 ^ -((raw & 1) as i32));
        }
    }
    None
}

/// Reads a signed 64-bit varint at `*at`. None: it runs over the end of `bytes` or over ten bytes.
#[inline(always)]
pub fn read_varlong(bytes: &[u8], at: &mut usize, canonical: &mut bool) -> Option<i64> {
    let mut raw = 0u64;
    for i in 0..10 {
        let byte = *bytes.get(*at + i)?;
        raw |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *canonical &= i == 0 || (byte != 0 && (i < 9 || byte < 2));
            *at += i + 1;
            return Some((raw >> 1) as i64 ^ -((raw & 1) as i64));
        }
    }
    None
}

/// Writes the shortest form of `value` to the front of `out` and returns its length, at most ten bytes.
/// A 32-bit value has the same form.
#[inline(always)]
pub fn put(out: &mut [u8], value: i64) -> usize {
    let mut raw = ((value << 1) ^ (value >> 63)) as u64;
    let mut length = 0;
    for byte in out.iter_mut() {
        length += 1;
        if raw < 0x80 {
            *byte = raw as u8;
            break;
        }
        *byte = raw as u8 | 0x80;
        raw >>= 7;
    }
    length
}

/// Appends the shortest form of `value`.
pub fn push(out: &mut Vec<u8>, value: i64) {
    let mut bytes = [0u8; 10];
    let length = put(&mut bytes, value);
    out.extend_from_slice(&bytes[..length]);
}

/// Bytes of the shortest form of `value`.
#[inline(always)]
pub fn length(value: i64) -> usize {
    let raw = ((value << 1) ^ (value >> 63)) as u64;
    (70 - (raw | 1).leading_zeros() as usize) / 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_reads_back() {
        for shift in 0..63 {
            for value in [
                1i64 << shift,
                -(1i64 << shift),
                (1i64 << shift) - 1,
                i64::MAX,
                i64::MIN,
            ] {
                let mut out = Vec::new();
                push(&mut out, value);
                assert_eq!(out.len(), length(value));
                let (mut at, mut canonical) = (0, true);
                assert_eq!(read_varlong(&out, &mut at, &mut canonical), Some(value));
                assert!(canonical && at == out.len());
                if let Ok(small) = i32::try_from(value) {
                    let (mut at, mut canonical) = (0, true);
                    assert_eq!(read_varint(&out, &mut at, &mut canonical), Some(small));
                    assert!(canonical && at == out.len());
                }
            }
        }
    }

    #[test]
    fn longer_forms_are_read_and_noticed() {
        for (bytes, value) in [
            (&[0x80u8, 0x00][..], 0),
            (&[0x81, 0x80, 0x00], -1),
            (&[0x82, 0x80, 0x80, 0x80, 0x70], 1),
        ] {
            let (mut at, mut canonical) = (0, true);
            assert_eq!(read_varint(bytes, &mut at, &mut canonical), Some(value));
            assert!(!canonical && at == bytes.len());
        }
        let (mut at, mut canonical) = (0, true);
        assert_eq!(read_varint(&[0x80; 9], &mut at, &mut canonical), None);
        assert_eq!(read_varlong(&[0x80; 11], &mut at, &mut canonical), None);
        assert_eq!(read_varint(&[0x80], &mut at, &mut canonical), None);
    }
}
