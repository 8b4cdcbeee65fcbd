//! The cleaned segment's offset and time index, one decision per batch (facts 5.8, 10.4; Kafka's LogSegment.append).

pub struct Indexes {
    base_offset: i64,
    interval: i64,
    /// Bytes since the last entry; the first batch never gets one.
    since: i64,
    max_timestamp: i64,
    max_timestamp_offset: i64,
    last_entry_timestamp: i64,
    pub offset_index: Vec<u8>,
    pub time_index: Vec<u8>,
}

/// An offset that is too far from the base offset.
pub struct TooFar(pub i64);

impl Indexes {
    pub fn new(base_offset: i64, interval: i64) -> Indexes {
        Indexes {
            base_offset,
            interval,
            since: 0,
            max_timestamp: -1,
            max_timestamp_offset: base_offset,
            last_entry_timestamp: -1,
            offset_index: Vec::new(),
            time_index: Vec::new(),
        }
    }

    pub fn base_offset(&self) -> i64 {
        self.base_offset
    }

    pub fn relative(&self, offset: i64) -> Result<i32, TooFar> {
        i32::try_from(offset.wrapping_sub(self.base_offset))
            .ok()
            .filter(|&relative| relative >= 0)
            .ok_or(TooFar(offset))
    }

    /// A batch of `size` bytes was appended at `position`.
    #[inline]
    pub fn append(
        &mut self,
        last_offset: i64,
        max_timestamp: i64,
        position: u64,
        size: usize,
    ) -> Result<(), TooFar> {
        if max_timestamp > self.max_timestamp {
            self.max_timestamp = max_timestamp;
            self.max_timestamp_offset = last_offset;
        }
        if self.since > self.interval {
            let relative = self.relative(last_offset)?;
            self.offset_index.extend_from_slice(&relative.to_be_bytes());
            self.offset_index
                .extend_from_slice(&(position as i32).to_be_bytes());
            self.append_time()?;
            self.since = 0;
        }
        self.since += size as i64;
        Ok(())
    }

    fn append_time(&mut self) -> Result<(), TooFar> {
        if self.max_timestamp > self.last_entry_timestamp {
            let relative = self.relative(self.max_timestamp_offset)?;
            self.time_index
                .extend_from_slice(&self.max_timestamp.to_be_bytes());
            self.time_index.extend_from_slice(&relative.to_be_bytes());
            self.last_entry_timestamp = self.max_timestamp;
        }
        Ok(())
    }

    /// Closing entry of the time index.
    pub fn close(&mut self) -> Result<(), TooFar> {
        self.append_time()
    }
}
