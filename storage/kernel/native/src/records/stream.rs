//! The records of a compressed batch, read without holding more than a window of what it decompresses to.
//!
//! A few kilobytes of a producer can become gigabytes. Brokers look at lengths and timestamps only, so what is in between need
//! not be kept: Kafka reads such a batch as a stream, too. Slower than a walk over memory, so it is for large batches alone.

use flate2::{Decompress, FlushDecompress, Status};

use crate::errors::Damage;
use crate::records::codecs::{gzip_body, gzip_trailer, not_zstd, GZIP, LARGEST_AREA};
use crate::records::record::{MISFIT, OUTSIDE};
use crate::records::step::Step;
use crate::records::{lz4, snappy};

/// Decompressed at once, where the codec leaves the choice.
const PIECE: usize = 256 << 10;
/// How far back a block of an lz4 frame may refer.
const HISTORY: usize = 64 << 10;

/// What a check has to know of one record.
pub struct Seen {
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub has_key: bool,
}

enum Source<'a> {
    Gzip(Gzip<'a>),
    Snappy(snappy::Chunks<'a>),
    Lz4(lz4::Frame<'a>),
    Zstd(Zstd<'a>),
}

/// The decompressed bytes of a batch's records, from the first to the last.
pub struct Stream<'a> {
    source: Source<'a>,
    window: Vec<u8>,
    /// The next byte in the window.
    at: usize,
    /// Bytes that came out of the source.
    total: usize,
}

impl<'a> Stream<'a> {
    pub fn open(codec: u8, data: &'a [u8]) -> Result<Stream<'a>, Damage> {
        let source = match codec {
            1 => Source::Gzip(Gzip::open(data)?),
            2 => Source::Snappy(snappy::Chunks::open(data)?),
            3 => Source::Lz4(lz4::Frame::open(data, 2)?),
            _ => Source::Zstd(Zstd::open(data)),
        };
        Ok(Stream {
            source,
            window: Vec::new(),
            at: 0,
            total: 0,
        })
    }

    /// Makes the next bytes available. False: there are none.
    fn refill(&mut self) -> Result<bool, Damage> {
        let passed = self.at.saturating_sub(HISTORY);
        self.window.drain(..passed);
        self.at -= passed;
        loop {
            let before = self.window.len();
            let step = match &mut self.source {
                Source::Gzip(gzip) => gzip.next(&mut self.window)?,
                Source::Snappy(chunks) => chunks.next(&mut self.window, LARGEST_AREA)?,
                Source::Lz4(frame) => frame.next(&mut self.window)?,
                Source::Zstd(zstd) => zstd.next(&mut self.window)?,
            };
            let came = self.window.len() - before;
            self.total += came;
            if step == Step::Full || self.total > LARGEST_AREA {
                return Err(Damage::too_large(LARGEST_AREA));
            }
            if came > 0 {
                return Ok(true);
            }
            if step == Step::End {
                return Ok(false);
            }
        }
    }

    fn byte(&mut self) -> Result<Option<u8>, Damage> {
        if self.at == self.window.len() && !self.refill()? {
            return Ok(None);
        }
        let byte = self.window[self.at];
        self.at += 1;
        Ok(Some(byte))
    }

    /// Whether every byte was read.
    pub fn is_through(&mut self) -> Result<bool, Damage> {
        Ok(self.at == self.window.len() && !self.refill()?)
    }

    /// Length of the record that follows; then read it with `record`.
    pub fn record_length(&mut self) -> Result<usize, Damage> {
        const UNREADABLE: &str = "the length of a record is unreadable";
        let mut raw = 0u64;
        for i in 0..5 {
            let byte = self.byte()?.ok_or(UNREADABLE)?;
            raw |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                let length = usize::try_from(unzigzag(raw as u32));
                return length.map_err(|_| "the length of a record is negative".into());
            }
        }
        Err(UNREADABLE.into())
    }

    pub fn record(&mut self, length: usize) -> Result<Seen, Damage> {
        let mut record = Body {
            stream: self,
            left: length,
        };
        record.byte()?; // attributes
        let timestamp_delta = record.long()?;
        let offset_delta = record.int()?;
        let key_length = record.int()?;
        record.pass(key_length)?;
        let value_length = record.int()?;
        record.pass(value_length)?;
        let header_count = record.int()?;
        if header_count < 0 {
            return Err("the header count of a record is negative".into());
        }
        for _ in 0..header_count {
            let key_length = record.int()?;
            if key_length < 0 {
                return Err("the key of a record header is null".into());
            }
            record.pass(key_length)?;
            let value_length = record.int()?;
            record.pass(value_length)?;
        }
        if record.left != 0 {
            return Err(MISFIT.into());
        }
        Ok(Seen {
            timestamp_delta,
            offset_delta,
            has_key: key_length >= 0,
        })
    }
}

/// What is left of a record.
struct Body<'s, 'a> {
    stream: &'s mut Stream<'a>,
    left: usize,
}

impl Body<'_, '_> {
    fn byte(&mut self) -> Result<u8, Damage> {
        self.left = self.left.checked_sub(1).ok_or(MISFIT)?;
        Ok(self.stream.byte()?.ok_or(OUTSIDE)?)
    }

    fn raw(&mut self, most: usize) -> Result<u64, Damage> {
        let mut raw = 0u64;
        for i in 0..most {
            let byte = self.byte()?;
            raw |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                return Ok(raw);
            }
        }
        Err(MISFIT.into())
    }

    fn int(&mut self) -> Result<i32, Damage> {
        self.raw(5).map(|raw| unzigzag(raw as u32))
    }

    fn long(&mut self) -> Result<i64, Damage> {
        self.raw(10)
            .map(|raw| (raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// Passes a field of `length` bytes by; below 0 there is none.
    fn pass(&mut self, length: i32) -> Result<(), Damage> {
        let mut length = length.max(0) as usize;
        self.left = self.left.checked_sub(length).ok_or(MISFIT)?;
        loop {
            let there = length.min(self.stream.window.len() - self.stream.at);
            self.stream.at += there;
            length -= there;
            if length == 0 {
                return Ok(());
            }
            if !self.stream.refill()? {
                return Err(OUTSIDE.into());
            }
        }
    }
}

fn unzigzag(raw: u32) -> i32 {
    (raw >> 1) as i32 ^ -((raw & 1) as i32)
}

/// Gzip members, one after the other.
struct Gzip<'a> {
    rest: &'a [u8],
    /// The member at hand.
    member: Option<Member>,
}

struct Member {
    inflate: Decompress,
    crc: crc32fast::Hasher,
}

impl Member {
    fn new() -> Member {
        Member {
            inflate: Decompress::new(false),
            crc: crc32fast::Hasher::new(),
        }
    }
}

impl<'a> Gzip<'a> {
    fn open(data: &'a [u8]) -> Result<Gzip<'a>, Damage> {
        let rest = gzip_body(data).ok_or("its gzip header is damaged")?;
        Ok(Gzip {
            rest,
            member: Some(Member::new()),
        })
    }

    fn next(&mut self, out: &mut Vec<u8>) -> Result<Step, Damage> {
        let Some(member) = &mut self.member else {
            // As Java's GZIPInputStream: another member may follow, anything else is ignored.
            if !self.rest.starts_with(&GZIP) {
                return Ok(Step::End);
            }
            *self = Gzip::open(self.rest)?;
            return Ok(Step::More);
        };
        let (start, read) = (out.len(), member.inflate.total_in());
        out.reserve(PIECE);
        let status = member
            .inflate
            .decompress_vec(self.rest, out, FlushDecompress::None)
            .map_err(|_| "its gzip data cannot be decompressed")?;
        let consumed = (member.inflate.total_in() - read) as usize;
        self.rest = self.rest.get(consumed..).unwrap_or(&[]);
        member.crc.update(&out[start..]);
        if status == Status::StreamEnd {
            let crc = member.crc.clone().finalize();
            self.rest = gzip_trailer(self.rest, crc, member.inflate.total_out())?;
            self.member = None;
        } else if consumed == 0 && out.len() == start {
            return Err("its gzip data is cut short".into());
        }
        Ok(Step::More)
    }
}

/// Zstd frames, one after the other.
struct Zstd<'a> {
    context: zstd_safe::DCtx<'static>,
    data: &'a [u8],
    at: usize,
    /// A frame has begun and not ended.
    inside: bool,
}

impl<'a> Zstd<'a> {
    fn open(data: &'a [u8]) -> Zstd<'a> {
        Zstd {
            context: zstd_safe::DCtx::create(),
            data,
            at: 0,
            inside: false,
        }
    }

    fn next(&mut self, out: &mut Vec<u8>) -> Result<Step, Damage> {
        if !self.inside && self.at == self.data.len() {
            return Ok(Step::End);
        }
        let start = out.len();
        out.reserve(PIECE);
        let mut input = zstd_safe::InBuffer::around(&self.data[self.at..]);
        let mut output = zstd_safe::OutBuffer::around_pos(out, start);
        let hint = self
            .context
            .decompress_stream(&mut output, &mut input)
            .map_err(not_zstd)?;
        let (consumed, end) = (input.pos(), output.pos());
        self.at += consumed;
        self.inside = hint != 0;
        if self.inside && consumed == 0 && end == start {
            return Err("its zstd data is cut short".into());
        }
        Ok(Step::More)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::codecs::Codecs;
    use crate::records::varint;

    /// `count` records with a key and a value of `size` zeros.
    fn records(count: i32, size: usize) -> Vec<u8> {
        let mut area = Vec::new();
        for index in 0..count {
            let mut body = vec![0, 0];
            varint::push(&mut body, i64::from(index));
            varint::push(&mut body, 1);
            body.push(b'k');
            varint::push(&mut body, size as i64);
            body.resize(body.len() + size, 0);
            body.push(0);
            varint::push(&mut area, body.len() as i64);
            area.extend_from_slice(&body);
        }
        area
    }

    fn read(codec: u8, data: &[u8]) -> Result<usize, Damage> {
        let mut stream = Stream::open(codec, data)?;
        let mut count = 0;
        while !stream.is_through()? {
            let length = stream.record_length()?;
            let seen = stream.record(length)?;
            assert!(seen.has_key && seen.offset_delta == count as i32);
            count += 1;
        }
        Ok(count)
    }

    #[test]
    fn every_codec_gives_all_records_and_survives_damage() {
        let mut codecs = Codecs::default();
        for codec in 1..=4u8 {
            for (count, size) in [(1, 0), (3, 5), (1, 3_000_000), (40, 100_000)] {
                let mut packed = Vec::new();
                codecs
                    .compress(codec, &records(count, size), &mut packed)
                    .unwrap();
                assert_eq!(read(codec, &packed).unwrap(), count as usize);
                for cut in 0..packed.len().min(100) {
                    assert!(read(codec, &packed[..cut]).is_err() || codec == 2);
                    let mut flipped = packed.clone();
                    flipped[cut] ^= 0x55;
                    let _ = std::panic::catch_unwind(|| read(codec, &flipped));
                }
            }
        }
    }

    #[test]
    fn the_window_stays_small() {
        let mut codecs = Codecs::default();
        for codec in 1..=4u8 {
            let mut packed = Vec::new();
            codecs
                .compress(codec, &records(1, 20_000_000), &mut packed)
                .unwrap();
            let mut stream = Stream::open(codec, &packed).unwrap();
            let length = stream.record_length().unwrap();
            stream.record(length).unwrap();
            assert!(stream.is_through().unwrap());
            assert!(stream.window.capacity() < 2 << 20);
        }
    }
}
