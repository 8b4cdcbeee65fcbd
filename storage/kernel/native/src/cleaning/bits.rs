//! Growing bit sets: which dirty records are dead, which batches need a closer look.

#[derive(Default)]
pub struct Bits {
    words: Vec<u64>,
}

impl Bits {
    #[inline(always)]
    pub fn set(&mut self, at: u64) {
        let word = (at >> 6) as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (at & 63);
    }

    /// Bits never set are 0, however far away.
    #[inline(always)]
    pub fn get(&self, at: u64) -> bool {
        self.words
            .get((at >> 6) as usize)
            .is_some_and(|word| word >> (at & 63) & 1 != 0)
    }

    /// How many of the `count` bits from `at` on are set.
    pub fn count(&self, at: u64, count: u64) -> u64 {
        let (first, end) = (at >> 6, at + count);
        let mut total = 0;
        let words = self.words.get(first as usize..).unwrap_or(&[]);
        for (i, &word) in words.iter().enumerate() {
            let start = (first + i as u64) << 6;
            if start >= end {
                break;
            }
            let mut word = word;
            if start < at {
                word &= u64::MAX << (at - start);
            }
            if end - start < 64 {
                word &= (1 << (end - start)) - 1;
            }
            total += u64::from(word.count_ones());
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_was_set() {
        let mut bits = Bits::default();
        for at in (0..1000).filter(|at| at % 3 == 0) {
            bits.set(at);
        }
        for at in 0..300 {
            for count in 0..200 {
                let expected = (at..at + count).filter(|at| at % 3 == 0).count() as u64;
                assert_eq!(bits.count(at, count), expected);
            }
        }
        assert!(
            !bits.get(1 << 40) && bits.count(1 << 40, 10) == 0 && bits.get(999) && !bits.get(998)
        );
    }
}
