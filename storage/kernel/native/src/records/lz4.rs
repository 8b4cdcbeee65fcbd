//! The lz4 frame as Kafka writes and reads it (facts 2.10), around liblz4's blocks.

use crate::errors::Damage;
use crate::memory::{lz4_compress_block, lz4_decompress_block};
use crate::records::step::Step;

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
const BLOCK: usize = 64 << 10;
/// High bit of a block's length: the block is stored as it was.
const STORED: u32 = 1 << 31;

/// Appends `data` as one frame: independent blocks of 64 KiB, no checksum, no content size. False: liblz4 refused.
pub fn compress(data: &[u8], out: &mut Vec<u8>) -> bool {
    compress_at(data, None, out)
}

/// As `compress`, with a level by the slower HC compressor: Kafka's lz4 levels other than 9.
pub fn compress_at(data: &[u8], level: Option<i32>, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0x60, 0x40, 0x82]);
    for block in data.chunks(BLOCK) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        let Some(written) = lz4_compress_block(block, level, out) else {
            return false;
        };
        let mut length = written as u32;
        if written >= block.len() {
            out.truncate(start + 4);
            out.extend_from_slice(block);
            length = block.len() as u32 | STORED;
        }
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }
    out.extend_from_slice(&[0; 4]);
    true
}

/// A frame that is decompressed block by block.
pub struct Frame<'a> {
    rest: &'a [u8],
    largest: usize,
    /// Blocks may refer to what came before them.
    linked: bool,
    checked: bool,
}

const CUT: &str = "its lz4 data is cut short";

impl<'a> Frame<'a> {
    /// Reads the header. Format V0 had a wrong checksum of it, so with magic 0 that is not compared.
    pub fn open(data: &'a [u8], magic: u8) -> Result<Frame<'a>, Damage> {
        let &[flags, block_flags] = data.get(4..6).ok_or(CUT)? else {
            return Err(CUT.into());
        };
        if !data.starts_with(&MAGIC) {
            return Err("its lz4 data does not start with a frame".into());
        }
        let size_code = block_flags >> 4;
        if flags >> 6 != 1
            || flags & 3 != 0
            || block_flags & 0x8f != 0
            || !(4..=7).contains(&size_code)
        {
            return Err("its lz4 frame has flags that are not known".into());
        }
        let descriptor = if flags & 0x08 != 0 { 14 } else { 6 };
        let stored = *data.get(descriptor).ok_or(CUT)?;
        if magic > 0 && stored != (xxh32(&data[4..descriptor]) >> 8) as u8 {
            return Err("the checksum of its lz4 header is wrong".into());
        }
        Ok(Frame {
            rest: &data[descriptor + 1..],
            largest: 1usize << (8 + 2 * size_code),
            linked: flags & 0x20 == 0,
            checked: flags & 0x10 != 0,
        })
    }

    fn word(&mut self) -> Result<u32, Damage> {
        let (bytes, after) = self.rest.split_at_checked(4).ok_or(CUT)?;
        self.rest = after;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Appends the next block to `out`, which holds all of the frame so far, or the last 64 KiB of it.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<Step, Damage> {
        let length = self.word()?;
        if length == 0 {
            return Ok(Step::End);
        }
        let (block, after) = self
            .rest
            .split_at_checked((length & !STORED) as usize)
            .ok_or(CUT)?;
        self.rest = after;
        if block.len() > self.largest {
            return Err("a block of its lz4 frame is larger than the frame allows".into());
        }
        if self.checked && self.word()? != xxh32(block) {
            return Err("the checksum of a block of its lz4 frame is wrong".into());
        }
        if length & STORED != 0 {
            out.extend_from_slice(block);
        } else {
            let history = if self.linked { out.len() } else { 0 };
            lz4_decompress_block(block, out, self.largest, history)
                .ok_or("its lz4 data cannot be decompressed")?;
        }
        Ok(Step::More)
    }
}

/// Puts the decompressed frame into the empty `out`. False: it is larger than `limit`.
pub fn decompress(data: &[u8], magic: u8, out: &mut Vec<u8>, limit: usize) -> Result<bool, Damage> {
    let mut frame = Frame::open(data, magic)?;
    while frame.next(out)? == Step::More {
        if out.len() > limit {
            return Ok(false);
        }
    }
    Ok(true)
}

/// XXH32 with seed 0, of which the frame's checksums are made.
fn xxh32(data: &[u8]) -> u32 {
    const P: [u32; 5] = [
        0x9e37_79b1,
        0x85eb_ca77,
        0xc2b2_ae3d,
        0x27d4_eb2f,
        0x1656_67b1,
    ];
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let mut sum = P[4];
    let stripes = data.chunks_exact(16);
    let tail = stripes.remainder();
    if data.len() >= 16 {
        let mut lanes = [P[0].wrapping_add(P[1]), P[1], 0, 0u32.wrapping_sub(P[0])];
        for stripe in stripes {
            for (lane, bytes) in lanes.iter_mut().zip(stripe.chunks_exact(4)) {
                *lane = lane
                    .wrapping_add(word(bytes).wrapping_mul(P[1]))
                    .rotate_left(13)
                    .wrapping_mul(P[0]);
            }
        }
        sum = [1, 7, 12, 18]
            .iter()
            .zip(lanes)
            .fold(0u32, |sum, (&turn, lane)| {
                sum.wrapping_add(lane.rotate_left(turn))
            });
    }
    sum = sum.wrapping_add(data.len() as u32);
    let words = tail.chunks_exact(4);
    let bytes = words.remainder();
    for four in words {
        sum = sum
            .wrapping_add(word(four).wrapping_mul(P[2]))
            .rotate_left(17)
            .wrapping_mul(P[3]);
    }
    for &byte in bytes {
        sum = sum
            .wrapping_add(u32::from(byte).wrapping_mul(P[4]))
            .rotate_left(11)
            .wrapping_mul(P[0]);
    }
    sum = (sum ^ sum >> 15).wrapping_mul(P[1]);
    sum = (sum ^ sum >> 13).wrapping_mul(P[2]);
    sum ^ sum >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums() {
        assert_eq!(xxh32(b""), 0x02cc_5d05);
        assert_eq!(xxh32(b"abc"), 0x32d1_53ff);
        assert_eq!((xxh32(&[0x60, 0x40]) >> 8) as u8, 0x82);
    }

    #[test]
    fn reads_back_what_it_wrote() {
        for length in [0usize, 1, 100, 65_535, 65_536, 65_537, 300_000] {
            let data: Vec<u8> = (0..length).map(|i| ((i * i) >> 7) as u8).collect();
            let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
            assert!(compress(&data, &mut packed));
            assert!(decompress(&packed, 2, &mut unpacked, usize::MAX).unwrap());
            assert!(unpacked == data);
        }
    }
}
