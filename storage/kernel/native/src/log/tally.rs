//! What a topic's rules say of the records of a batch, one after the other (facts 10.2).

/// Faulty records of a batch that are named; the twin has the same number.
const MOST_ERRORS: usize = 100_000;

/// Kinds of errors of single records.
const NO_KEY: i32 = 1;
const TIMESTAMP: i32 = 2;

/// (record index, kind, timestamp)
pub type RecordError = (i32, i32, i64);
/// (crc matches, largest timestamp, offsets are 0, 1, 2…, errors)
pub type Summary = (bool, i64, bool, Vec<RecordError>);

#[derive(Clone, Copy)]
pub struct Rules {
    pub base_timestamp: i64,
    pub append_time: Option<i64>,
    pub keys_required: bool,
    pub earliest: i64,
    pub latest: i64,
    pub largest_body: usize,
}

/// What is found of the records of a batch, one after the other.
pub struct Tally {
    rules: Rules,
    largest: i64,
    consecutive: bool,
    errors: Vec<RecordError>,
}

impl Tally {
    pub fn new(rules: Rules) -> Tally {
        Tally {
            rules,
            largest: -1,
            consecutive: true,
            errors: Vec::new(),
        }
    }

    #[inline(always)]
    pub fn take(&mut self, index: i32, timestamp_delta: i64, offset_delta: i32, has_key: bool) {
        let rules = &self.rules;
        let timestamp = rules
            .append_time
            .unwrap_or_else(|| rules.base_timestamp.wrapping_add(timestamp_delta));
        self.consecutive &= offset_delta == index;
        if rules.keys_required && !has_key {
            self.errors.push((index, NO_KEY, timestamp));
        } else if timestamp != -1 && !(rules.earliest..=rules.latest).contains(&timestamp) {
            self.errors.push((index, TIMESTAMP, timestamp));
        }
        self.largest = self.largest.max(timestamp);
    }

    /// The batch is refused, and enough is said about why.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.errors.len() >= MOST_ERRORS
    }

    pub fn done(self) -> Summary {
        (true, self.largest, self.consecutive, self.errors)
    }
}
