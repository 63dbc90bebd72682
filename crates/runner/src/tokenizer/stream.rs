//! Assembles text from bytes and returns only complete characters.

/// Holds back the bytes of a character until it is complete.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    /// At most three bytes: the start of a character.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Takes bytes and returns the characters that are now complete; invalid bytes become U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let broken = chunk.invalid();
            let at_end = done + broken.len() == self.pending.len();
            if broken.is_empty() || (at_end && is_begin(broken)) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            done += broken.len();
        }
        self.pending.drain(..done);
        text
    }

    /// The remainder at the end: a character that was never completed becomes U+FFFD.
    pub fn finish(self) -> &'static str {
        if self.pending.is_empty() { "" } else { "\u{fffd}" }
    }
}

/// Whether more bytes could complete these to a character.
fn is_begin(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_come_whole() {
        let text = "a\u{e9}\u{4e2d}\u{1f600}!";
        let mut stream = Utf8Stream::default();
        let parts: Vec<String> = text.bytes().map(|b| stream.push(&[b])).collect();
        assert_eq!(parts.concat(), text);
        assert_eq!(parts.iter().filter(|p| !p.is_empty()).count(), 5);
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn what_is_no_character_is_replaced_and_holds_nothing_up() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(stream.push(b"\xe2\x82"), "");
        assert_eq!(stream.push(b"c"), "\u{fffd}c");
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert_eq!(stream.finish(), "\u{fffd}");
    }
}
