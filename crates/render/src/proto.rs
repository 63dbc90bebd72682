//! Protocol buffer encoding: a field is its number and wire type in a varint, then its value.

/// Appends a varint.
pub fn varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Encoded length of a varint in bytes.
pub fn varint_len(v: u64) -> usize {
    (64 - (v | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends a number; negative values of the types int32 and int64 are passed as their 64 bits.
pub fn number(out: &mut Vec<u8>, field: u32, v: u64) {
    varint(out, u64::from(field) << 3);
    varint(out, v);
}

/// Appends eight bytes: a fixed64, or a double as its bits.
pub fn fixed(out: &mut Vec<u8>, field: u32, v: u64) {
    varint(out, u64::from(field) << 3 | 1);
    out.extend_from_slice(&v.to_le_bytes());
}

/// Appends a string, bytes, or a message.
pub fn bytes(out: &mut Vec<u8>, field: u32, v: &[u8]) {
    varint(out, u64::from(field) << 3 | 2);
    varint(out, v.len() as u64);
    out.extend_from_slice(v);
}

/// An interning entry: a message with an id and a text.
pub fn interned(out: &mut Vec<u8>, field: u32, iid: u64, text: &str) {
    let mut entry = Vec::with_capacity(text.len() + 8);
    number(&mut entry, 1, iid);
    bytes(&mut entry, 2, text.as_bytes());
    bytes(out, field, &entry);
}

/// The fields of a message, in order, as far as they can be decoded: field number, and the value of a varint or
/// of eight or four bytes, or the bytes of a length-delimited field.
pub fn fields(mut rest: &[u8]) -> impl Iterator<Item = Option<(u64, ProtoField<'_>)>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = one(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field)
    })
}

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ProtoField<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn one<'a>(rest: &mut &'a [u8]) -> Option<(u64, ProtoField<'a>)> {
    let tag = read_varint(rest)?;
    let value = match tag & 7 {
        0 => ProtoField::Number(read_varint(rest)?),
        1 => ProtoField::Bytes(rest.split_off(..8)?),
        2 => {
            let len = usize::try_from(read_varint(rest)?).ok()?;
            ProtoField::Bytes(rest.split_off(..len)?)
        }
        5 => ProtoField::Bytes(rest.split_off(..4)?),
        _ => return None,
    };
    Some((tag >> 3, value))
}

/// Consumes a varint from the front.
pub fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut v = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        v |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(v);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut out = Vec::new();
        for (i, v) in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX].into_iter().enumerate() {
            let before = out.len();
            varint(&mut out, v);
            assert_eq!(out.len() - before, varint_len(v), "{v}");
            out.truncate(before);
            number(&mut out, i as u32 + 1, v);
        }
        bytes(&mut out, 20, b"text");
        fixed(&mut out, 21, 5);
        let read: Vec<_> = fields(&out).map(Option::unwrap).collect();
        assert_eq!(read.len(), 9);
        assert_eq!(read.get(6), Some(&(7, ProtoField::Number(u64::MAX))));
        assert_eq!(read.get(7), Some(&(20, ProtoField::Bytes(b"text"))));
        assert_eq!(read.get(8), Some(&(21, ProtoField::Bytes(&[5, 0, 0, 0, 0, 0, 0, 0]))));
        // Cut at any position, the fields before the cut are returned, and the cut is reported.
        for cut in 1..out.len() {
            let read: Vec<_> = fields(out.get(..cut).unwrap()).collect();
            assert!(read.iter().rev().skip(1).all(Option::is_some));
        }
        assert_eq!(fields(&[0xff; 20]).last(), Some(None));
    }
}
