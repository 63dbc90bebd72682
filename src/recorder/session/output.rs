//! Where a session writes: a counting writer, and notices for both the user and the trace.

use std::cell::RefCell;
use std::io::Write;

use crate::recorder::drain::Drain;
use crate::recorder::recording::SessionObserver;
use machine::usage;
use pfi::record;
use pfi::{Output, WriteError};

/// A writer that counts bytes.
pub(super) struct Counted {
    pub out: Box<dyn Output>,
    pub bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let n = self.out.write(buf)?;
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

impl Output for Counted {
    fn seekable(&self) -> bool {
        self.out.seekable()
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.out.write_at(pos, bytes)
    }
}

/// Notifies both the user and readers of the trace.
pub(super) fn notice<W: Write>(
    drain: &RefCell<Drain<W>>,
    text: &str,
    watch: &mut dyn SessionObserver,
) -> Result<(), WriteError> {
    watch.tell(text);
    drain.borrow_mut().enc.notice(&record::Notice { t: usage::now() as i64, text })
}
