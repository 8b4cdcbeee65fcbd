//! What pass two does at a desk: the batches of a chunk whose records have to be looked into.

use std::ops::Range;

use crate::cleaning::ahead::{self, Chunk, Load};
use crate::cleaning::desk::{Desk, Fate, Question, Verdict, View};
use crate::cleaning::reader::Source;
use crate::errors::Damage;
use crate::records::header::Header;

/// What is to be done with a batch.
#[derive(Clone, Copy)]
pub enum Deed {
    Known(Fate),
    Ask(Question),
}

/// A batch, and what is done with it.
pub struct Step {
    pub header: Header,
    pub verdict: Verdict,
    pub deed: Deed,
    /// Of the batch in `bytes`, if it is needed; and of what it became in `out`.
    pub bytes: Range<usize>,
    pub out: Range<usize>,
}

#[derive(Default)]
pub struct Judged {
    pub steps: Vec<Step>,
    /// The batches that were written again.
    pub out: Vec<u8>,
    /// The step that found damage; those after it were not taken.
    pub damage: Option<(usize, Damage)>,
}

impl Load for Judged {
    fn clear(&mut self) {
        ahead::clear(&mut self.steps);
        ahead::clear(&mut self.out);
    }
}

/// Answers what is asked about the batches of a chunk, up to the first that is damaged.
pub fn judge(
    mut chunk: Chunk<Judged>,
    round: View,
    group: &[Source],
    desk: &mut Desk,
) -> Chunk<Judged> {
    let source = &group[chunk.source];
    let Judged { steps, out, damage } = &mut chunk.load;
    for (index, step) in steps.iter_mut().enumerate() {
        let Deed::Ask(question) = step.deed else {
            continue;
        };
        let start = out.len();
        match desk.judge(
            round,
            source,
            &step.header,
            &chunk.bytes[step.bytes.clone()],
            step.verdict,
            question,
            out,
        ) {
            Ok((fate, _)) => step.deed = Deed::Known(fate),
            Err(found) => {
                *damage = Some((index, found));
                break;
            }
        }
        step.out = start..out.len();
    }
    chunk
}
