//! Merges another Perfetto trace with ours into one file: concatenated packets form a valid trace, as long as no
//! two programs use the same sequence number.

use std::io::{self, BufRead, Read};

use crate::proto::{ProtoField, fields};

/// Why a file cannot be merged with ours.
#[derive(Debug, thiserror::Error)]
pub enum NotMergeable {
    #[error("it is empty")]
    Empty,
    #[error("it is gzip data: unpack it first (gunzip)")]
    Gzip,
    #[error("it is JSON text; only Perfetto's protobuf can be merged")]
    Json,
    #[error("it is not a Perfetto trace: no packet starts at byte {0}")]
    NotPerfetto(u64),
    #[error("it ends in the middle of a packet, at byte {0}: it was cut off")]
    Torn(u64),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Numbers from here on are taken as free if packets are compressed and cannot be inspected: no tracing service
/// counts that far.
const COMPRESSED: u64 = 1 << 20;
const PACKET: u8 = 0x0a;
const SEQUENCE: u64 = 10;
const COMPRESSED_PACKETS: u64 = 50;

/// The first sequence number that the trace leaves free.
///
/// # Errors
/// It is not such a trace, or cannot be read.
pub fn free_sequence(trace: &mut dyn BufRead) -> Result<u64, NotMergeable> {
    match trace.fill_buf()? {
        [] => return Err(NotMergeable::Empty),
        [0x1f, 0x8b, ..] => return Err(NotMergeable::Gzip),
        [b'{' | b'[', ..] => return Err(NotMergeable::Json),
        _ => {}
    }
    let (mut free, mut at, mut packet) = (1, 0, Vec::new());
    while let Some(first) = byte(trace)? {
        if first != PACKET {
            return Err(NotMergeable::NotPerfetto(at));
        }
        let (len, read) = length(trace)?.ok_or(NotMergeable::Torn(at))?;
        packet.clear();
        if trace.take(len).read_to_end(&mut packet)? as u64 != len {
            return Err(NotMergeable::Torn(at));
        }
        for field in fields(&packet) {
            match field.ok_or(NotMergeable::NotPerfetto(at))? {
                (SEQUENCE, ProtoField::Number(n)) => free = free.max(n.saturating_add(1)),
                (COMPRESSED_PACKETS, _) => free = free.max(COMPRESSED),
                _ => {}
            }
        }
        at += 1 + read + len;
    }
    Ok(free)
}

fn byte(trace: &mut dyn BufRead) -> io::Result<Option<u8>> {
    let next = trace.fill_buf()?.first().copied();
    trace.consume(usize::from(next.is_some()));
    Ok(next)
}

/// Length of a packet, and the number of bytes that encode it.
fn length(trace: &mut dyn BufRead) -> io::Result<Option<(u64, u64)>> {
    let mut len = 0;
    // A packet of 2^35 bytes is not valid.
    for i in 0..5 {
        let Some(byte) = byte(trace)? else { return Ok(None) };
        len |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Ok(Some((len, i + 1)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(mut trace: &[u8]) -> Result<u64, String> {
        free_sequence(&mut trace).map_err(|e| e.to_string())
    }

    #[test]
    fn the_greatest_number_decides() {
        let packet = |n: u8| [PACKET, 4, 0x40, 1, 0x50, n];
        assert_eq!(free(&[packet(7), packet(3)].concat()), Ok(8));
        // A packet without a sequence number, and compressed ones.
        assert_eq!(free(&[PACKET, 2, 0x40, 1]), Ok(1));
        assert_eq!(free(&[PACKET, 4, 0x92, 0x03, 1, 0]), Ok(COMPRESSED));
    }

    #[test]
    fn what_is_none_is_told() {
        let refused = |trace: &[u8], why: &str| assert!(free(trace).unwrap_err().contains(why), "{trace:?}");
        refused(b"", "empty");
        refused(b"\x1f\x8b\x08", "gunzip");
        refused(b"{\"traceEvents\"", "JSON");
        refused(b"\x7fELF", "no packet starts at byte 0");
        refused(&[PACKET, 2, 0x40, 1, PACKET, 9, 0], "at byte 4: it was cut off");
        refused(&[PACKET, 2, 0x40, 0x80], "no packet starts at byte 0");
        refused(&[PACKET, 0xff, 0xff, 0xff, 0xff, 0xff, 1], "cut off");
    }
}
