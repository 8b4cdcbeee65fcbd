//! Snappy: the xerial stream around blocks, and a block encoder that finds the matches libsnappy 1.1.10 finds.
//!
//! The encoder is our own because the bytes have to equal those of libsnappy, and the `snap` crate hashes small inputs
//! differently (valid, but other bytes). Blocks are decoded by `snap`.

use crate::errors::Damage;
use crate::records::step::Step;

const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const CHUNK: usize = 32 << 10;
const MAX_TABLE_BITS: u32 = 14;
const MIN_TABLE: usize = 1 << 8;
/// A match is only looked for where this many bytes follow.
const MARGIN: usize = 15;

#[derive(Default)]
pub struct Encoder {
    table: Vec<u16>,
}

impl Encoder {
    /// Appends `data` as a xerial stream: header, then chunks of 32 KiB, each with its length.
    pub fn compress(&mut self, data: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        for chunk in data.chunks(CHUNK) {
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            self.block(chunk, out);
            let length = (out.len() - start - 4) as u32;
            out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        }
    }

    /// Appends one raw block of at most 64 KiB.
    fn block(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let mut length = input.len();
        while length >= 0x80 {
            out.push(length as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        let size = input
            .len()
            .next_power_of_two()
            .clamp(MIN_TABLE, 1 << MAX_TABLE_BITS);
        self.table.clear();
        self.table.resize(size, 0);
        fragment(input, &mut self.table, out);
    }
}

#[inline(always)]
fn load32(input: &[u8], at: usize) -> u32 {
    match input.get(at..at + 4) {
        Some(bytes) => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        None => 0,
    }
}

#[inline(always)]
fn load64(input: &[u8], at: usize) -> u64 {
    match input.get(at..at + 8) {
        Some(b) => u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
        None => 0,
    }
}

fn fragment(input: &[u8], table: &mut [u16], out: &mut Vec<u8>) {
    let mask = table.len() - 1;
    let hash =
        |word: u32| (word.wrapping_mul(0x1e35_a7bd) >> (31 - MAX_TABLE_BITS)) as usize >> 1 & mask;
    let mut emitted = 0;
    if input.len() >= MARGIN {
        let limit = input.len() - MARGIN;
        let mut at = 1;
        'literals: loop {
            // Look for a match, one byte further each time at first, then in growing steps.
            let mut skip = 32usize;
            let mut candidate;
            loop {
                let next = at + (skip >> 5);
                if next > limit {
                    break 'literals;
                }
                skip += skip >> 5;
                let word = load32(input, at);
                let entry = &mut table[hash(word)];
                candidate = usize::from(*entry);
                *entry = at as u16;
                if load32(input, candidate) == word {
                    break;
                }
                at = next;
            }
            literal(&input[emitted..at], out);
            // Copies, as long as one follows the other.
            loop {
                let matched = 4 + common(input, candidate + 4, at + 4);
                copy(at - candidate, matched, out);
                at += matched;
                emitted = at;
                if at >= limit {
                    break 'literals;
                }
                table[hash(load32(input, at - 1))] = (at - 1) as u16;
                let word = load32(input, at);
                let entry = &mut table[hash(word)];
                candidate = usize::from(*entry);
                *entry = at as u16;
                if load32(input, candidate) != word {
                    break;
                }
            }
            at += 1;
        }
    }
    if emitted < input.len() {
        literal(&input[emitted..], out);
    }
}

/// How many bytes from `from` on equal those from `at` on.
#[inline(always)]
fn common(input: &[u8], from: usize, at: usize) -> usize {
    let (mut matched, left) = (0, input.len().saturating_sub(at));
    while matched + 8 <= left {
        let different = load64(input, from + matched) ^ load64(input, at + matched);
        if different != 0 {
            return matched + different.trailing_zeros() as usize / 8;
        }
        matched += 8;
    }
    while matched < left && input[from + matched] == input[at + matched] {
        matched += 1;
    }
    matched
}

fn literal(bytes: &[u8], out: &mut Vec<u8>) {
    let Some(length) = bytes.len().checked_sub(1) else {
        return;
    };
    match length {
        0..60 => out.push((length << 2) as u8),
        60..256 => out.extend_from_slice(&[60 << 2, length as u8]),
        _ => out.extend_from_slice(&[61 << 2, length as u8, (length >> 8) as u8]),
    }
    out.extend_from_slice(bytes);
}

fn copy(offset: usize, mut length: usize, out: &mut Vec<u8>) {
    let long = |length: usize| {
        [
            ((length - 1) << 2) as u8 | 2,
            offset as u8,
            (offset >> 8) as u8,
        ]
    };
    while length >= 68 {
        out.extend_from_slice(&long(64));
        length -= 64;
    }
    if length > 64 {
        out.extend_from_slice(&long(60));
        length -= 60;
    }
    if length < 12 && offset < 2048 {
        out.extend_from_slice(&[
            (offset >> 8 << 5) as u8 | ((length - 4) << 2) as u8 | 1,
            offset as u8,
        ]);
    } else {
        out.extend_from_slice(&long(length));
    }
}

/// A stream that is decompressed chunk by chunk: xerial, or one raw block without a header.
pub enum Chunks<'a> {
    Framed(&'a [u8]),
    /// None when it was taken.
    Raw(Option<&'a [u8]>),
}

const CUT: &str = "its snappy data is cut short";

impl<'a> Chunks<'a> {
    pub fn open(data: &'a [u8]) -> Result<Chunks<'a>, Damage> {
        if data.starts_with(&MAGIC) {
            header(data).map(Chunks::Framed)
        } else {
            Ok(Chunks::Raw(Some(data)))
        }
    }

    /// Appends the next chunk, unless `out` would then hold more than `limit` bytes.
    pub fn next(&mut self, out: &mut Vec<u8>, limit: usize) -> Result<Step, Damage> {
        let rest = match self {
            Chunks::Raw(block) => {
                return match block.take() {
                    Some(block) => decompress_block(block, out, limit),
                    None => Ok(Step::End),
                }
            }
            Chunks::Framed(rest) => rest,
        };
        // Streams may be joined: a header may stand where a chunk could.
        while rest.starts_with(&MAGIC) {
            *rest = header(rest)?;
        }
        if rest.is_empty() {
            return Ok(Step::End);
        }
        let (length, chunks) = rest.split_at_checked(4).ok_or(CUT)?;
        let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let (chunk, after) = chunks.split_at_checked(length).ok_or(CUT)?;
        *rest = after;
        decompress_block(chunk, out, limit)
    }
}

/// Puts the decompressed stream into the empty `out`. False: it is larger than `limit`.
pub fn decompress(data: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<bool, Damage> {
    let mut chunks = Chunks::open(data)?;
    loop {
        match chunks.next(out, limit)? {
            Step::More => {}
            Step::End => return Ok(true),
            Step::Full => return Ok(false),
        }
    }
}

fn header(data: &[u8]) -> Result<&[u8], Damage> {
    let (head, rest) = data.split_at_checked(16).ok_or(CUT)?;
    if i32::from_be_bytes([head[8], head[9], head[10], head[11]]) < 1 {
        return Err("its snappy stream has an unknown version".into());
    }
    Ok(rest)
}

fn decompress_block(block: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<Step, Damage> {
    let damaged = |_| Damage::from("its snappy data cannot be decompressed");
    let length = snap::raw::decompress_len(block).map_err(damaged)?;
    // Three bytes make at most 64, so a length beyond that is a lie, and is not allocated.
    if length / 32 > block.len() {
        return Err("its snappy data cannot be decompressed".into());
    }
    let used = out.len();
    if used + length > limit {
        return Ok(Step::Full);
    }
    out.resize(used + length, 0);
    let written = snap::raw::Decoder::new()
        .decompress(block, &mut out[used..])
        .map_err(damaged)?;
    out.truncate(used + written);
    Ok(Step::More)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_it_wrote() {
        let mut state = 1u64;
        for length in [
            0usize, 1, 14, 15, 16, 100, 255, 256, 257, 5000, 32767, 32768, 32769, 200_000,
        ] {
            let data: Vec<u8> = (0..length)
                .map(|i| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    if i % 97 < 60 {
                        (i % 7) as u8
                    } else {
                        (state >> 56) as u8
                    }
                })
                .collect();
            let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
            Encoder::default().compress(&data, &mut packed);
            assert!(decompress(&packed, &mut unpacked, usize::MAX).unwrap());
            assert!(unpacked == data);
        }
    }
}
