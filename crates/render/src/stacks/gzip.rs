//! The gzip file format (RFC 1952) without compression: profiles are small, and their readers expect the format.

/// Data bytes in one stored block of DEFLATE (RFC 1951, 3.2.4) at most.
const BLOCK: usize = 0xffff;

/// The data as a gzip file of one member, without name and time.
pub fn gzip(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let mut blocks = data.chunks(BLOCK).peekable();
    if blocks.peek().is_none() {
        out.extend([1, 0, 0, 0xff, 0xff]);
    }
    while let Some(block) = blocks.next() {
        out.push(u8::from(blocks.peek().is_none()));
        let len = block.len() as u16;
        out.extend(len.to_le_bytes());
        out.extend((!len).to_le_bytes());
        out.extend_from_slice(block);
    }
    out.extend(crc32(data).to_le_bytes());
    out.extend((data.len() as u32).to_le_bytes());
    out
}

/// CRC-32 with the polynomial of IEEE 802.3, reflected.
fn crc32(data: &[u8]) -> u32 {
    let byte = |crc: u32, b: &u8| {
        (0..8).fold(crc ^ u32::from(*b), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    };
    !data.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_the_standard_one() {
        // The check value of CRC-32/ISO-HDLC.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn long_data_takes_several_blocks() {
        for n in [0, 1, BLOCK, BLOCK + 1] {
            let out = gzip(&vec![7; n]);
            let blocks = n.div_ceil(BLOCK).max(1);
            assert_eq!(out.len(), 10 + 5 * blocks + n + 8, "{n}");
        }
    }
}
