//! Compression of record areas, byte for byte as Kafka 4.4.0 does it at default levels (facts 2.10).

use flate2::{Compress, Compression, FlushCompress, Status};

use crate::errors::Damage;
use crate::memory::{Inflated, Inflater};
use crate::records::{lz4, snappy};

/// Largest decompressed record area, as in Kafka, where it has to fit a Java array or buffer.
pub const LARGEST_AREA: usize = i32::MAX as usize;
const ZSTD_LEVEL: i32 = 3;
const STEP: usize = 64 << 10;

/// Contexts that are made at first use and then used again.
#[derive(Default)]
pub struct Codecs {
    deflate: Option<Compress>,
    inflate: Option<Inflater>,
    snappy: snappy::Encoder,
    zstd: Option<zstd_safe::CCtx<'static>>,
    unzstd: Option<zstd_safe::DCtx<'static>>,
}

impl Codecs {
    /// Appends `data` compressed.
    pub fn compress(&mut self, codec: u8, data: &[u8], out: &mut Vec<u8>) -> Result<(), Damage> {
        match codec {
            0 => out.extend_from_slice(data),
            1 => self.gzip(data, out)?,
            2 => self.snappy.compress(data, out),
            3 => {
                if !lz4::compress(data, out) {
                    return Err("liblz4 could not compress its records".into());
                }
            }
            _ => self.zstd(data, out)?,
        }
        Ok(())
    }

    /// Puts the decompressed `data` into `out`, whose old content goes. Memory grows with what really comes out.
    pub fn decompress(
        &mut self,
        codec: u8,
        magic: u8,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Damage> {
        if self.decompress_within(codec, magic, data, out, LARGEST_AREA)? {
            Ok(())
        } else {
            Err(Damage::too_large(LARGEST_AREA))
        }
    }

    /// As `decompress`. False: more than `limit` bytes came out, and what `out` holds is of no use.
    pub fn decompress_within(
        &mut self,
        codec: u8,
        magic: u8,
        data: &[u8],
        out: &mut Vec<u8>,
        limit: usize,
    ) -> Result<bool, Damage> {
        out.clear();
        match codec {
            1 => self.gunzip(data, out, limit),
            2 => snappy::decompress(data, out, limit),
            3 => lz4::decompress(data, magic, out, limit),
            _ => self.unzstd(data, out, limit),
        }
    }

    fn gzip(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Damage> {
        let failed = |_| Damage::from("zlib could not compress its records");
        let deflate = self
            .deflate
            .get_or_insert_with(|| Compress::new(Compression::new(6), false));
        deflate.reset();
        // No name, no time, operating system unknown: as JDK 16 and later write it.
        out.extend_from_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff]);
        out.reserve(data.len() / 2 + STEP);
        loop {
            let consumed = deflate.total_in() as usize;
            if deflate
                .compress_vec(&data[consumed..], out, FlushCompress::Finish)
                .map_err(failed)?
                == Status::StreamEnd
            {
                break;
            }
            out.reserve(STEP);
        }
        out.extend_from_slice(&crc32fast::hash(data).to_le_bytes());
        out.extend_from_slice(&(data.len() as u32).to_le_bytes());
        Ok(())
    }

    fn gunzip(&mut self, data: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<bool, Damage> {
        let mut rest = data;
        loop {
            match self.gunzip_member(rest, out, limit)? {
                // As Java's GZIPInputStream: another member may follow, anything else is ignored.
                Some(after) if after.starts_with(&GZIP) => rest = after,
                found => return Ok(found.is_some()),
            }
        }
    }

    /// What follows the member; None where `out` grew past the limit.
    fn gunzip_member<'a>(
        &mut self,
        data: &'a [u8],
        out: &mut Vec<u8>,
        limit: usize,
    ) -> Result<Option<&'a [u8]>, Damage> {
        let body = gzip_body(data).ok_or("its gzip header is damaged")?;
        let inflate = match &mut self.inflate {
            Some(inflate) => inflate,
            none => {
                none.insert(Inflater::new().ok_or("there is no memory to decompress its records")?)
            }
        };
        let start = out.len();
        // The buffer stays from batch to batch, so it rarely has to grow.
        out.reserve((body.len().saturating_mul(3)).clamp(STEP, 16 << 20));
        let consumed = loop {
            match inflate.inflate(body, out) {
                Inflated::Done { consumed } if out.len() <= limit => break consumed,
                Inflated::Damaged => return Err("its gzip data cannot be decompressed".into()),
                Inflated::Full if out.capacity() <= limit => {
                    let room = out.capacity() - start;
                    out.reserve((room * 2).min(limit + 1 - start));
                }
                _ => return Ok(None),
            }
        };
        let rest = body.get(consumed..).unwrap_or(&[]);
        let plain = &out[start..];
        gzip_trailer(rest, crc32fast::hash(plain), plain.len() as u64).map(Some)
    }

    fn zstd(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Damage> {
        let failed = |_| Damage::from("libzstd could not compress its records");
        let context = self.zstd.get_or_insert_with(zstd_safe::CCtx::create);
        context
            .reset(zstd_safe::ResetDirective::SessionOnly)
            .map_err(failed)?;
        context
            .set_parameter(zstd_safe::CParameter::CompressionLevel(ZSTD_LEVEL))
            .map_err(failed)?;
        let start = out.len();
        out.reserve(zstd_safe::compress_bound(data.len()) + 64);
        let mut input = zstd_safe::InBuffer::around(data);
        // Java closes the stream by a flush and then the end, which leaves an empty last block.
        let mut stage = 0;
        let mut position = start;
        while stage < 3 {
            let mut target = zstd_safe::OutBuffer::around_pos(out, position);
            let left = match stage {
                0 => context
                    .compress_stream(&mut target, &mut input)
                    .map(|_| data.len() - input.pos()),
                1 => context.flush_stream(&mut target),
                _ => context.end_stream(&mut target),
            };
            position = target.pos();
            if left.map_err(failed)? == 0 {
                stage += 1;
            } else {
                out.reserve(STEP);
            }
        }
        Ok(())
    }

    fn unzstd(&mut self, data: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<bool, Damage> {
        let context = self.unzstd.get_or_insert_with(zstd_safe::DCtx::create);
        // Frames of streams do not tell their size. The buffer stays from batch to batch, so it rarely has to grow.
        out.reserve((data.len().saturating_mul(4)).clamp(STEP, 16 << 20));
        loop {
            out.clear();
            match context.decompress(out, data) {
                Ok(_) => return Ok(out.len() <= limit),
                Err(code)
                    if zstd_safe::get_error_name(code) == "Destination buffer is too small" =>
                {
                    if out.capacity() > limit {
                        return Ok(false);
                    }
                    out.reserve((out.capacity() * 2).min(limit + 1));
                }
                Err(code) => return Err(not_zstd(code)),
            }
        }
    }
}

pub fn not_zstd(code: usize) -> Damage {
    let reason = zstd_safe::get_error_name(code);
    format!("its zstd data cannot be decompressed ({reason})").into()
}

/// How a gzip member starts.
pub const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// Checks what follows the deflate data of a gzip member, and returns what follows that.
pub fn gzip_trailer(rest: &[u8], crc: u32, length: u64) -> Result<&[u8], Damage> {
    let (trailer, rest) = rest
        .split_at_checked(8)
        .ok_or("its gzip data is cut short")?;
    if trailer[..4] != crc.to_le_bytes() || trailer[4..] != (length as u32).to_le_bytes() {
        return Err("the checksum of its gzip data is wrong".into());
    }
    Ok(rest)
}

/// What follows the header of a gzip member.
pub fn gzip_body(data: &[u8]) -> Option<&[u8]> {
    let flags = *data.get(3)?;
    if !data.starts_with(&GZIP) {
        return None;
    }
    let mut at = 10;
    if flags & 4 != 0 {
        at += 2 + usize::from(u16::from_le_bytes([*data.get(at)?, *data.get(at + 1)?]));
    }
    for flag in [8, 16] {
        if flags & flag != 0 {
            at += data.get(at..)?.iter().position(|&byte| byte == 0)? + 1;
        }
    }
    if flags & 2 != 0 {
        at += 2;
    }
    data.get(at..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_reads_back_and_survives_damage() {
        let data: Vec<u8> = (0..200_000usize)
            .map(|i| (i % 251 * (i >> 12)) as u8)
            .collect();
        let mut codecs = Codecs::default();
        for codec in 1..=4u8 {
            for length in [0, 1, 1000, data.len()] {
                let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
                codecs
                    .compress(codec, &data[..length], &mut packed)
                    .unwrap();
                codecs.decompress(codec, 2, &packed, &mut unpacked).unwrap();
                assert!(unpacked == data[..length]);
                for cut in 0..packed.len().min(200) {
                    let _ = codecs.decompress(codec, 2, &packed[..cut], &mut unpacked);
                    let mut flipped = packed.clone();
                    flipped[cut] ^= 0x55;
                    let _ = codecs.decompress(codec, 2, &flipped, &mut unpacked);
                }
            }
        }
    }
    #[test]
    fn gzip_grows_joins_members_and_notices_what_is_missing() {
        let mut codecs = Codecs::default();
        let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
        let (large, small) = (vec![7u8; 5_000_000], vec![8u8; 10]);
        codecs.compress(1, &large, &mut packed).unwrap();
        let first = packed.len();
        codecs.compress(1, &small, &mut packed).unwrap();
        packed.extend_from_slice(b"anything else is ignored");
        codecs.decompress(1, 2, &packed, &mut unpacked).unwrap();
        assert!(unpacked[..large.len()] == large && unpacked[large.len()..] == small);
        for end in [9, 10, 11, first / 2, first - 9, first - 8, first - 1] {
            assert!(codecs
                .decompress(1, 2, &packed[..end], &mut unpacked)
                .is_err());
        }
        packed[first - 1] ^= 1;
        let damage = codecs.decompress(1, 2, &packed, &mut unpacked).unwrap_err();
        assert_eq!(damage.reason, "the checksum of its gzip data is wrong");
    }
}
