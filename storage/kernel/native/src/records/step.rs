//! Decompression piece by piece.

/// How decompressing a piece ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was appended, or might be by the next step.
    More,
    /// There is nothing more.
    End,
    /// The piece is too large for the limit.
    Full,
}
