//! The end of a trace during recording: an output that keeps unread data for a reader in the same process.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use super::block::FILE_HEADER;
use super::output::Output;
use super::reader::Block;

/// The part of a trace in memory: from the block that was last at the latest read.
#[derive(Default)]
struct TailBuffer {
    bytes: Vec<u8>,
    /// Where the bytes begin in the trace.
    base: u64,
    /// Something was written since the last read.
    news: bool,
}

/// The reading end.
#[derive(Default)]
pub struct Tail(Rc<RefCell<TailBuffer>>);

/// The writing end: an output for a trace.
pub struct Tap {
    kept: Rc<RefCell<TailBuffer>>,
    file: Option<Box<dyn Output>>,
}

impl Tail {
    /// The writing end, which also passes everything to `file`, if given.
    pub fn tap(&self, file: Option<Box<dyn Output>>) -> Tap {
        Tap { kept: self.0.clone(), file }
    }

    /// Nothing more is written: the writing end is gone.
    pub fn ended(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// Passes on the blocks begun or grown since the last call, as far as they are written. Keeps the last one,
    /// which may still grow, and drops the others.
    pub fn read(&self, take: &mut dyn FnMut(&Block<'_>)) {
        let mut kept = self.0.borrow_mut();
        if !std::mem::take(&mut kept.news) {
            return;
        }
        let mut at = if kept.base == 0 { FILE_HEADER.min(kept.bytes.len()) } else { 0 };
        while let Some((block, len)) = Block::first(kept.bytes.get(at..).unwrap_or_default()) {
            take(&block);
            // Only a complete block is followed by another.
            if at + len == kept.bytes.len() {
                break;
            }
            at += len;
        }
        kept.bytes.drain(..at);
        kept.base += at as u64;
    }
}

impl Write for Tap {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.file.as_mut().map_or(Ok(buf.len()), |f| f.write(buf))?;
        let mut kept = self.kept.borrow_mut();
        kept.bytes.extend_from_slice(buf.get(..n).unwrap_or_default());
        kept.news = true;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |f| f.flush())
    }
}

impl Output for Tap {
    fn seekable(&self) -> bool {
        self.file.as_ref().is_none_or(|f| f.seekable())
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |f| f.write_at(pos, bytes))?;
        let mut kept = self.kept.borrow_mut();
        kept.news = true;
        let base = kept.base;
        // Only the last block's header is rewritten, and that block is kept.
        pos.checked_sub(base)
            .map_or(Err(io::ErrorKind::InvalidInput.into()), |at| kept.bytes.write_at(at, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::{Encoder, EncoderConfig};
    use crate::record::{Device, Entry, Header, Level, Record, SourceKind, Token, TransportKind};

    fn header() -> Header<'static> {
        let (tool, command, kernel, arch, host, cpu_model, topology) = ("", "", "", "", "", "", "");
        let (level, transport, source) = (Level::Token, TransportKind::Ring, SourceKind::Bpf);
        let (mono_ns, boot_ns, real_ns, structure, buffer_bytes, hit_ns) = (0, 0, 0, false, 0, 0);
        Header {
            tool,
            command,
            kernel,
            arch,
            host,
            cpu_model,
            topology,
            mono_ns,
            boot_ns,
            real_ns,
            level,
            structure,
            transport,
            buffer_bytes,
            hit_ns,
            source,
        }
    }

    #[test]
    fn every_record_is_shown_as_it_comes_and_only_the_last_block_is_kept() {
        let tail = Tail::default();
        let cfg = EncoderConfig { block_bytes: 4096, flush_ns: 0, ..EncoderConfig::default() };
        let mut enc = Encoder::new(tail.tap(None), cfg, &header()).expect("an encoder");
        let (mut blocks, mut seen) = (0, Vec::new());
        for seq in 0..4000 {
            let (t, dur, entry) = (1_000_000 * seq as i64, 900_000 + seq, Entry::Decode);
            enc.token(&Token {
                seq,
                pid: 1,
                tid: 1,
                entry,
                n_tokens: Some(1),
                t,
                dur,
                cut: false,
                device: Device::Idle,
            })
            .expect("room");
            enc.tick(seq).expect("room");
            if seq % 100 != 99 {
                continue;
            }
            tail.read(&mut |block| {
                blocks += 1;
                let tokens = block.records().filter_map(|r| match r {
                    Ok(Record::Token(t)) => Some(t.seq),
                    _ => None,
                });
                // The last block is shown again.
                let tokens: Vec<u64> = tokens.collect();
                seen.retain(|s| tokens.first().is_none_or(|first| s < first));
                seen.extend(tokens);
            });
            assert!(seen.iter().copied().eq(0..=seq), "after token {seq}");
            let kept = tail.0.borrow().bytes.len();
            assert!(kept < 8192, "{kept} bytes are kept");
        }
        tail.read(&mut |_| panic!("nothing is new"));
        assert!(!tail.ended());
        drop(enc);
        assert!(tail.ended());
        assert!(blocks > 40, "{blocks}");
    }
}
