//! A pass on several threads: the calling one reads batches into chunks, all of them work on chunks at their desks, and
//! what comes of each is taken back in the order of the log.

use crate::cleaning::desk::Desk;
use crate::cleaning::pool::Line;
use crate::cleaning::reader::{Buffer, Reader, Source};
use crate::cleaning::settings::Settings;
use crate::errors::{KernelError, Outcome};

/// How far work on several threads runs ahead of what is taken back in order: this bounds the memory that it takes.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    threads: usize,
    chunk_bytes: usize,
}

/// Batches in a chunk; their headers are kept beside their bytes.
const MOST_BATCHES: usize = 4096;

impl Flow {
    /// None: `bytes` in all are not worth a second thread, or there is none.
    pub fn of(settings: &Settings, bytes: u64) -> Option<Flow> {
        let Settings {
            threads,
            chunk_bytes,
            ..
        } = *settings;
        (threads > 1 && bytes > chunk_bytes as u64).then_some(Flow {
            threads,
            chunk_bytes,
        })
    }

    pub fn is_enough(self, bytes: usize, batches: usize) -> bool {
        bytes >= self.chunk_bytes || batches >= MOST_BATCHES
    }

    /// Whether to take a result before reading on: so many chunks with so many bytes are on their way. One batch may be
    /// larger than all of that; then there is one at a time.
    pub fn is_full(self, chunks: usize, bytes: usize) -> bool {
        chunks > 2 * self.threads || bytes > 4 * self.threads * self.chunk_bytes
    }
}

/// Memory of a chunk above this is given back.
pub const KEPT: usize = 4 << 20;

/// Empties a part of a chunk, to be filled again.
pub fn clear<T>(part: &mut Vec<T>) {
    part.clear();
    part.shrink_to(KEPT / size_of::<T>().max(1));
}

/// What a pass notes about the batches of a chunk.
pub trait Load: Default {
    fn clear(&mut self);
}

/// Batches of one source on their way to a desk and back.
#[derive(Default)]
pub struct Chunk<L> {
    /// Index of their source.
    pub source: usize,
    /// They are the first of it, the last of it.
    pub begins: bool,
    pub ends: bool,
    /// Of those batches that are looked into at the desk.
    pub bytes: Vec<u8>,
    pub load: L,
    /// What went wrong after all of the batches.
    pub failure: Option<KernelError>,
}

impl<L: Load> Chunk<L> {
    fn begin(&mut self, source: usize, begins: bool) {
        (self.source, self.begins, self.ends) = (source, begins, false);
        clear(&mut self.bytes);
        self.load.clear();
    }
}

/// Reads `sources`, each beginning at byte `from` of it, and sends them down the line.
///
/// `fill` reads on into a chunk until the flow says that it is enough; false: the source is through. `take` is given each
/// chunk as it came back, in order, and fails with its failure; true: nothing that follows is needed.
pub fn ahead<L: Load>(
    sources: &[Source],
    from: impl Fn(&Source) -> u64,
    flow: Flow,
    line: &mut Line<Chunk<L>, Chunk<L>, Desk>,
    buffer: &mut Buffer,
    mut fill: impl FnMut(&Source, &mut Reader, &mut Chunk<L>) -> Outcome<bool>,
    mut take: impl FnMut(&Source, &mut Chunk<L>) -> Outcome<bool>,
) -> Outcome<()> {
    let mut spare = Vec::new();
    let mut waiting = 0;
    for (index, source) in sources.iter().enumerate() {
        let mut opened = Reader::new(source, from(source), buffer).map_err(Some);
        let (mut begins, mut more) = (true, true);
        while more {
            let mut chunk: Chunk<L> = spare.pop().unwrap_or_default();
            chunk.begin(index, std::mem::take(&mut begins));
            let filled = match &mut opened {
                Ok(reader) => fill(source, reader, &mut chunk),
                Err(error) => error.take().map_or(Ok(false), Err),
            };
            match filled {
                Ok(left) => more = left,
                Err(error) => chunk.failure = Some(error),
            }
            chunk.ends = !more;
            let failed = chunk.failure.is_some();
            waiting += chunk.bytes.len();
            line.push(chunk);
            while failed || flow.is_full(line.len(), waiting) {
                let Some(mut chunk) = line.next() else {
                    return Ok(());
                };
                waiting -= chunk.bytes.len();
                if take(&sources[chunk.source], &mut chunk)? {
                    return Ok(());
                }
                spare.push(chunk);
            }
        }
    }
    while let Some(mut chunk) = line.next() {
        if take(&sources[chunk.source], &mut chunk)? {
            break;
        }
    }
    Ok(())
}
