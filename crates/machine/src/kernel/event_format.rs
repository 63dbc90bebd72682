//! Fields of a kernel event, as its `format` file in tracefs describes them, and their values in the event's bytes.

/// Most fields that are read of an event.
const FIELDS: usize = 128;

/// Where a field is in the bytes of an event, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the event's beginning, `common_type` included.
    pub offset: u32,
    pub size: u32,
    pub signed: bool,
    pub kind: FieldKind,
}

/// How the bytes of a field are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    Number,
    /// An array within the event; of characters, it ends at its first zero.
    Array,
    /// Four bytes that say where the text is: its offset in the event (low half) and its length (high half).
    DataLoc,
    /// The same (Linux 6.0 on), with an offset from the end of the field.
    RelLoc,
}

/// The fields of an event, and the kernel's number for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFormat {
    /// None: the text does not say.
    pub id: Option<u32>,
    fields: Vec<(String, Field)>,
}

impl EventFormat {
    /// Reads a `format` file. Lines that are not understood are left out.
    pub fn parse(text: &str) -> EventFormat {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok());
        EventFormat { id, fields: text.lines().filter_map(field).take(FIELDS).collect() }
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(of, _)| of == name).map(|f| f.1)
    }
}

/// A line such as `field:u64 seqno; offset:8; size:8; signed:0;`.
fn field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
    let declared = parts.next()?;
    let mut number = |key: &str| -> Option<u32> { parts.next()?.strip_prefix(key)?.parse().ok() };
    let (offset, size) = (number("offset:")?, number("size:")?);
    // Kernels before 2.6.32 say nothing about the sign.
    let signed = number("signed:").is_some_and(|signed| signed != 0);
    let (name, array) = match declared.rsplit([' ', '*']).next()?.split_once('[') {
        Some((name, _)) => (name, true),
        None => (declared.rsplit([' ', '*']).next()?, false),
    };
    let kind = match declared.split(' ').next()? {
        "__data_loc" => FieldKind::DataLoc,
        "__rel_loc" => FieldKind::RelLoc,
        _ if array => FieldKind::Array,
        _ => FieldKind::Number,
    };
    Some((name.to_owned(), Field { offset, size, signed, kind }))
}

impl Field {
    fn bytes<'r>(&self, raw: &'r [u8]) -> Option<&'r [u8]> {
        raw.get(self.offset as usize..)?.get(..self.size as usize)
    }

    /// Its value in an event, a signed one extended to 64 bits; None if it is no number or not in these bytes.
    pub fn number(&self, raw: &[u8]) -> Option<u64> {
        let bytes = self.bytes(raw).filter(|_| self.kind == FieldKind::Number)?;
        let unused = 64u32.checked_sub(self.size.checked_mul(8)?).filter(|bits| *bits < 64)?;
        let mut word = [0; 8];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        // All supported machines are little-endian.
        let word = u64::from_le_bytes(word);
        Some(if self.signed { ((word << unused) as i64 >> unused) as u64 } else { word })
    }

    /// Its text in an event, up to the first zero; None if it is none, or not in these bytes.
    pub fn text<'r>(&self, raw: &'r [u8]) -> Option<&'r [u8]> {
        let bytes = self.bytes(raw)?;
        let told = || Some(u32::from_ne_bytes(bytes.try_into().ok()?)).map(|at| (at & 0xffff, at >> 16));
        let text = match self.kind {
            FieldKind::Number => return None,
            FieldKind::Array => bytes,
            FieldKind::DataLoc => {
                let (at, len) = told()?;
                raw.get(at as usize..)?.get(..len as usize)?
            }
            FieldKind::RelLoc => {
                let (at, len) = told()?;
                let at = at.checked_add(self.offset)?.checked_add(self.size)?;
                raw.get(at as usize..)?.get(..len as usize)?
            }
        };
        text.split(|&b| b == 0).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OLD: &str = "name: sched_process_fork\nID: 316\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:char parent_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\tfield:pid_t parent_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:char child_comm[16];\toffset:28;\tsize:16;\tsigned:0;\n\tfield:pid_t child_pid;\toffset:44;\tsize:4;\tsigned:1;\n";
    const NEW: &str = "\tfield:__data_loc char[] parent_comm;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:struct dma_fence * fence;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:__rel_loc char[] child;\toffset:24;\tsize:4;\tsigned:0;\n\
        \tfield:pid_t child_pid;\toffset:28;\tsize:4;\tsigned:1;\n";

    #[test]
    fn fields_follow_the_kernel() {
        let (old, new) = (EventFormat::parse(OLD), EventFormat::parse(NEW));
        assert_eq!((old.id, new.id), (Some(316), None));
        let child = Field { offset: 44, size: 4, signed: true, kind: FieldKind::Number };
        assert_eq!(old.field("child_pid"), Some(child));
        assert_eq!(old.field("parent_comm").map(|f| (f.offset, f.kind)), Some((8, FieldKind::Array)));
        assert_eq!(new.field("parent_comm").map(|f| f.kind), Some(FieldKind::DataLoc));
        assert_eq!(new.field("fence").map(|f| (f.offset, f.size)), Some((16, 8)));
        assert_eq!(new.field("nothing"), None);
        assert_eq!(EventFormat::parse("field:x;offset:").field("x"), None);
    }

    #[test]
    fn values_are_read_where_the_format_says() {
        let new = EventFormat::parse(NEW);
        let mut raw = vec![0; 28];
        raw[8..12].copy_from_slice(&(32u32 | 4 << 16).to_ne_bytes());
        raw[16..24].copy_from_slice(&u64::MAX.to_ne_bytes());
        // From the field's end, byte 28, on: after the four bytes of child_pid.
        raw[24..28].copy_from_slice(&(4u32 | 3 << 16).to_ne_bytes());
        raw.extend((-5i32).to_ne_bytes());
        raw.extend(b"gfx\0");
        let field = |name| new.field(name).expect("a field");
        assert_eq!(field("parent_comm").text(&raw), Some(&b"gfx"[..]));
        assert_eq!(field("child").text(&raw), Some(&b"gfx"[..]));
        assert_eq!(field("fence").number(&raw), Some(u64::MAX));
        assert_eq!(field("child_pid").number(&raw), Some(-5i64 as u64));
        assert_eq!(field("child_pid").text(&raw), None, "a number is no text");
        assert_eq!(field("parent_comm").number(&raw), None, "a text is no number");
        assert_eq!(field("parent_comm").text(&raw[..33]), None, "cut");
    }

    proptest! {
        #[test]
        fn any_text_and_any_bytes_are_read(
            lines in proptest::collection::vec("(field:|ID:)?[a-z_ *\\[\\]]{0,12};?\t?(offset:[0-9]{0,11};)?(size:[0-9]{0,11};)?(signed:[01];)?", 0..8),
            raw in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let format = EventFormat::parse(&lines.join("\n"));
            for (_, field) in &format.fields {
                let _ = field.number(&raw);
                prop_assert!(field.text(&raw).is_none_or(|text| text.len() <= raw.len()));
            }
        }

        #[test]
        fn a_text_lies_within_its_event(raw in proptest::collection::vec(any::<u8>(), 0..64), offset: u32, size: u32, rel: bool) {
            let kind = if rel { FieldKind::RelLoc } else { FieldKind::DataLoc };
            for (offset, size) in [(offset, size), (offset % 64, 4)] {
                let field = Field { offset, size, signed: false, kind };
                prop_assert!(field.text(&raw).is_none_or(|text| text.len() <= raw.len()));
            }
        }
    }
}
