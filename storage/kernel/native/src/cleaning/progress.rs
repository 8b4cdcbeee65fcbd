//! Reports of bytes read and written, now and then.

use crate::errors::Outcome;

/// Told about bytes read and written; answers Err(Stopped) to end the pass.
pub trait Progress {
    fn report(&mut self, read: u64, written: u64) -> Outcome<()>;
}

const REPORT_EVERY: u64 = 4 << 20;

/// Gathers bytes until they are worth a report.
pub struct Meter<'a> {
    progress: &'a mut dyn Progress,
    read: u64,
    written: u64,
}

impl<'a> Meter<'a> {
    pub fn new(progress: &'a mut dyn Progress) -> Meter<'a> {
        Meter {
            progress,
            read: 0,
            written: 0,
        }
    }

    #[inline]
    pub fn add(&mut self, read: usize, written: u64) -> Outcome<()> {
        self.read += read as u64;
        self.written += written;
        if self.read >= REPORT_EVERY {
            return self.finish();
        }
        Ok(())
    }

    pub fn finish(&mut self) -> Outcome<()> {
        let (read, written) = (
            std::mem::take(&mut self.read),
            std::mem::take(&mut self.written),
        );
        if read == 0 && written == 0 {
            return Ok(());
        }
        self.progress.report(read, written)
    }
}
