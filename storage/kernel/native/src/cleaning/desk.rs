//! What becomes of the records of one batch: looked up, decided on, and written again where some go (facts 5.6, 5.7). No
//! batch depends on another in here, so each thread can have a desk of its own.
//!
//! Dirty records need no lookup: pass one left a bit for each that says whether its key came again.

use crate::cleaning::dirty::Dirty;
use crate::cleaning::map::{Fingerprint, Hasher, OffsetMap};
use crate::cleaning::reader::Source;
use crate::cleaning::rebuild::{Rebuild, Rebuilt, Rewriter, Written};
use crate::cleaning::settings::Settings;
use crate::cleaning::stats::Stats;
use crate::errors::Damage;
use crate::records::batch::{self, Scratch};
use crate::records::codecs::Codecs;
use crate::records::header::Header;
use crate::records::{record, varint};

/// Lookups that are prefetched together.
const AHEAD: usize = 32;

/// Marks of a record: it stays,
const KEPT: u8 = 1;
/// it has no value,
const TOMBSTONE: u8 = 2;
/// it has no key,
const KEYLESS: u8 = 4;
/// and its offset lies in the range that the map speaks of.
const MAPPED: u8 = 8;

/// A key on its way to be looked up.
#[derive(Clone, Copy, Default)]
struct Lookup {
    print: Fingerprint,
    /// Of the record in its batch.
    index: usize,
    lose_from: u64,
}

/// What pass one noted about a batch.
#[derive(Clone, Copy)]
pub struct Noted {
    /// Of its first record.
    pub ordinal: u64,
    pub skipped: bool,
    pub closer: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Its records are not even looked at.
    Delete,
    DeleteEmpty,
    RetainEmpty,
}

/// The decision on a batch, before its records are looked at.
#[derive(Clone, Copy)]
pub struct Verdict {
    pub discard_records: bool,
    pub retention: Retention,
    pub marker_of_empty_transaction: bool,
}

/// What pass two reads of a round while it works on batches.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub settings: &'a Settings,
    pub hasher: &'a Hasher,
    pub map: &'a OffsetMap,
    pub dirty: &'a Dirty,
}

/// Which records of a batch go.
#[derive(Clone, Copy)]
pub enum Question {
    /// Those whose bits from this ordinal on are set; nothing else matters, and they are some, not all.
    Bits(u64),
    /// Those that the whole rule finds, record by record.
    Rule(Option<Noted>),
}

/// What becomes of a batch.
#[derive(Clone, Copy)]
pub enum Fate {
    /// Nothing of it is kept, or only its header.
    Dropped,
    /// It stays as it is, with so many records.
    Copied(u64),
    /// It was written again.
    Rewritten(Rebuilt, Written),
}

/// A place to work on batches, with memory that is kept from batch to batch.
#[derive(Default)]
pub struct Desk {
    pub codecs: Codecs,
    pub scratch: Scratch,
    /// Of the batches that were judged here. What depends on order is counted elsewhere.
    pub stats: Stats,
    /// A mark for each record of the batch at hand.
    marks: Vec<u8>,
    rewriter: Rewriter,
}

impl Desk {
    /// Decides on the records of a batch. A rewritten batch is appended to `out`. `(fate, number of records)`
    pub fn judge(
        &mut self,
        round: View,
        source: &Source,
        header: &Header,
        bytes: &[u8],
        verdict: Verdict,
        question: Question,
        out: &mut Vec<u8>,
    ) -> Result<(Fate, u64), Damage> {
        let judged = match question {
            Question::Bits(ordinal) => self
                .thin_out(round, header, bytes, ordinal, out)
                .map(|fate| (fate, header.record_count as u64)),
            Question::Rule(noted) => {
                // The area may lie in the scratch memory, and the desk is needed beside it.
                let mut scratch = std::mem::take(&mut self.scratch);
                let area = batch::area(header, bytes, &mut self.codecs, &mut scratch);
                let judged = area
                    .and_then(|area| self.filter(round, source, header, area, noted, verdict, out));
                self.scratch = scratch;
                judged
            }
        };
        self.scratch.trim();
        judged
    }

    /// Writes the batch without its dead records.
    fn thin_out(
        &mut self,
        round: View,
        header: &Header,
        bytes: &[u8],
        ordinal: u64,
        out: &mut Vec<u8>,
    ) -> Result<Fate, Damage> {
        let area = batch::area(header, bytes, &mut self.codecs, &mut self.scratch)?;
        let (rebuilt, written) = self.rewriter.write(
            &mut self.codecs,
            header,
            header.delete_horizon(),
            out,
            |rebuild| {
                thin_records(header, area, rebuild, |index| {
                    round.dirty.dead.get(ordinal + index)
                })
            },
        )?;
        Ok(Fate::Rewritten(rebuilt, written))
    }

    fn filter(
        &mut self,
        round: View,
        source: &Source,
        header: &Header,
        area: &[u8],
        noted: Option<Noted>,
        verdict: Verdict,
        out: &mut Vec<u8>,
    ) -> Result<(Fate, u64), Damage> {
        Self::look_up(&mut self.marks, round, header, area, noted, verdict)?;
        let count = self.marks.len() as u64;
        self.stats.messages_read += count;
        if verdict.discard_records {
            if header.is_control() {
                self.stats.markers_removed += count;
            } else {
                self.stats.aborted += count;
            }
            return Ok((Fate::Dropped, count));
        }
        let (kept, tombstone) = self.decide(round, source, header);
        if kept == 0 {
            return Ok((Fate::Dropped, count));
        }
        let old_horizon = header.delete_horizon();
        let set_horizon =
            old_horizon.is_none() && (tombstone || verdict.marker_of_empty_transaction);
        if kept == count && !header.is_legacy() && !set_horizon {
            return Ok((Fate::Copied(kept), count));
        }
        let settings = round.settings;
        let horizon = if set_horizon {
            Some(settings.now_ms.wrapping_add(settings.delete_retention_ms))
        } else {
            old_horizon
        };
        self.rebuild(header, area, horizon, out)
            .map(|fate| (fate, count))
    }

    /// Marks every record: what it is, and whether no later record of the mapped range has its key.
    fn look_up(
        marks: &mut Vec<u8>,
        round: View,
        header: &Header,
        area: &[u8],
        noted: Option<Noted>,
        verdict: Verdict,
    ) -> Result<(), Damage> {
        let (first_dirty, latest_offset) =
            (round.settings.first_dirty_offset, round.dirty.latest_offset);
        let plain = verdict.discard_records || header.is_control();
        marks.clear();
        let mut lookups = [Lookup::default(); AHEAD];
        let mut waiting = 0;
        let mut unread = false;
        batch::walk(header, area, |record| {
            let index = marks.len();
            let mut mark = KEPT | if record.is_tombstone() { TOMBSTONE } else { 0 };
            let key = record.key(area);
            if plain || record.offset > latest_offset {
                marks.push(mark | if key.is_none() { KEYLESS } else { 0 });
                return;
            }
            mark |= MAPPED;
            let Some(key) = key else {
                return marks.push(mark | KEYLESS);
            };
            // A record without an ordinal of its own loses to every record that has one at or after this.
            let lose_from = match noted {
                _ if record.offset < first_dirty => 0,
                Some(Noted {
                    skipped: false,
                    ordinal,
                    ..
                }) => {
                    let dead = round.dirty.dead.get(ordinal + index as u64);
                    return marks.push(if dead { mark & !KEPT } else { mark });
                }
                Some(Noted { ordinal, .. }) => ordinal,
                None => {
                    unread = true;
                    0
                }
            };
            marks.push(mark);
            let print = round.hasher.fingerprint(key);
            round.map.prefetch(print);
            lookups[waiting] = Lookup {
                print,
                index,
                lose_from,
            };
            waiting += 1;
            if waiting == AHEAD {
                answer(&round, &lookups, marks);
                waiting = 0;
            }
        })?;
        answer(&round, &lookups[..waiting], marks);
        if unread {
            return Err(
                "its records belong to the mapped range but pass one did not read them".into(),
            );
        }
        Ok(())
    }

    /// Applies the rules for keyless records and tombstones. How many records are kept, and whether a tombstone is.
    fn decide(&mut self, round: View, source: &Source, header: &Header) -> (u64, bool) {
        let retain_tombstones = if header.is_legacy() {
            source.retain_legacy_tombstones
        } else {
            header
                .delete_horizon()
                .is_none_or(|horizon| round.settings.now_ms < horizon)
        };
        let control = header.is_control();
        let stats = &mut self.stats;
        let (mut kept, mut tombstone_kept) = (0, false);
        for mark in &mut self.marks {
            let tombstone = *mark & TOMBSTONE != 0;
            stats.tombstones_read += u64::from(tombstone && *mark & KEYLESS == 0 && !control);
            if *mark & MAPPED != 0 {
                if *mark & KEYLESS != 0 {
                    stats.invalid_messages_read += 1;
                    *mark &= !KEPT;
                } else if *mark & KEPT == 0 {
                    stats.superseded += 1;
                } else if tombstone && !retain_tombstones {
                    stats.tombstones_expired += 1;
                    *mark &= !KEPT;
                }
            }
            kept += u64::from(*mark & KEPT);
            tombstone_kept |= tombstone && *mark & KEPT != 0;
        }
        (kept, tombstone_kept)
    }

    /// Writes the kept records as one V2 batch.
    fn rebuild(
        &mut self,
        header: &Header,
        area: &[u8],
        horizon: Option<i64>,
        out: &mut Vec<u8>,
    ) -> Result<Fate, Damage> {
        let mut marks = self.marks.iter();
        let (rebuilt, written) =
            self.rewriter
                .write(&mut self.codecs, header, horizon, out, |rebuild| {
                    let mut pushed = Ok(());
                    batch::walk(header, area, |record| {
                        if marks.next().is_some_and(|mark| mark & KEPT != 0) && pushed.is_ok() {
                            pushed = rebuild.push(area, record);
                        }
                    })?;
                    pushed
                })?;
        Ok(Fate::Rewritten(rebuilt, written))
    }
}

/// Asks the map for the records of `lookups`.
fn answer(round: &View, lookups: &[Lookup], marks: &mut [u8]) {
    for lookup in lookups {
        if round
            .map
            .get(lookup.print)
            .is_some_and(|ordinal| ordinal >= lookup.lose_from)
        {
            marks[lookup.index] &= !KEPT;
        }
    }
}

/// Pushes the records that are not dead; they were found whole and canonical in pass one.
#[inline(always)]
fn thin_records(
    header: &Header,
    area: &[u8],
    rebuild: &mut Rebuild,
    dead: impl Fn(u64) -> bool,
) -> Result<(), Damage> {
    const CHANGED: &str = "its records differ from those of pass one";
    let fixed_timestamp = header.is_log_append_time().then_some(header.max_timestamp);
    let mut at = 0;
    for index in 0..header.record_count as u64 {
        let (start, end) = record::body(area, at)?;
        at = end;
        if dead(index) {
            continue;
        }
        let body = &area[start..end];
        let (mut next, mut ignored) = (1, true);
        let delta = varint::read_varlong(body, &mut next, &mut ignored).ok_or(CHANGED)?;
        let tail = &body[next..];
        let offset_delta = varint::read_varint(tail, &mut 0, &mut ignored).ok_or(CHANGED)?;
        let timestamp = fixed_timestamp.unwrap_or(header.base_timestamp.wrapping_add(delta));
        rebuild.push_tail(
            header.base_offset + i64::from(offset_delta),
            timestamp,
            tail,
        )?;
    }
    Ok(())
}
