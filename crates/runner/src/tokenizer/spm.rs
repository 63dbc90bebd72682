//! SentencePiece: each piece is joined to the neighbour with which it makes the best-scored token.

use super::TokenId;
use super::merge::merge;
use super::vocabulary::Vocabulary;

/// The mark for a space, U+2581.
const BLANK: &[u8] = "\u{2581}".as_bytes();

/// Appends the tokens of a text.
pub fn encode(v: &Vocabulary<'_>, text: &[u8], space_prefix: bool, out: &mut Vec<TokenId>) {
    let mut marked = Vec::with_capacity(text.len() + BLANK.len());
    if space_prefix {
        marked.extend_from_slice(BLANK);
    }
    for &byte in text {
        match byte {
            b' ' => marked.extend_from_slice(BLANK),
            _ => marked.push(byte),
        }
    }
    let cost = |start: usize, _: usize, end: usize| Some(best_first(v.score(v.id(&marked[start..end])?)));
    for range in merge(ends(&marked), &cost) {
        let piece = &marked[range];
        match v.id(piece) {
            Some(token) => out.push(token),
            None => out.extend(piece.iter().filter_map(|byte| v.byte_token(*byte))),
        }
    }
}

/// Where characters end, judging only by their first bytes: the text may not be UTF-8.
fn ends(text: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let length = match text.get(at)? >> 4 {
            0xf => 4,
            0xe => 3,
            0xc | 0xd => 2,
            _ => 1,
        };
        at = (at + length).min(text.len());
        Some(at)
    })
}

/// A number that is smaller for better scores.
fn best_first(score: f32) -> u32 {
    // Adding zero makes -0 and 0 equal.
    let bits = (score + 0.0).to_bits();
    // Floats sort like their bits; negative ones in reverse.
    if bits >> 31 == 0 { !(bits | 1 << 31) } else { bits }
}

/// Appends the text that a piece represents.
pub fn append(mut piece: &[u8], out: &mut Vec<u8>) {
    while let Some((first, rest)) = piece.split_first() {
        match piece.strip_prefix(BLANK) {
            Some(after) => {
                out.push(b' ');
                piece = after;
            }
            None => {
                out.push(*first);
                piece = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_scores_come_first() {
        let scores = [f32::INFINITY, 5.0, 0.5, 0.0, -0.5, -360.0, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|w| best_first(w[0]) < best_first(w[1])));
        assert_eq!(best_first(-0.0), best_first(0.0));
    }

    #[test]
    fn characters_by_their_first_byte() {
        let text = b"a\xc3\xa9\xf0\x9f\x98\x80\x80\xe2\x82";
        assert_eq!(ends(text).collect::<Vec<_>>(), [1, 3, 7, 8, 10]);
    }
}
