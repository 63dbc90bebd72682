//! Joins adjacent pieces of a text, cheapest pair first: the common part of SentencePiece and BPE.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Two neighbours that may be joined: cost, left piece, right piece, bytes of both when the pair was found.
type MergeCandidate = Reverse<(u32, usize, usize, usize)>;

/// A piece of the text; an empty one has been joined to another.
struct TextPiece {
    range: Range<usize>,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Joins the pieces that begin at 0 and end at the positions in `ends` (ascending). `cost(start, middle, end)` is
/// the cost of joining the neighbours on both sides of `middle`, or `None` if they can't be joined. Among equal
/// costs the leftmost pair comes first.
pub fn merge(
    ends: impl Iterator<Item = usize>,
    cost: &dyn Fn(usize, usize, usize) -> Option<u32>,
) -> Vec<Range<usize>> {
    let mut pieces: Vec<TextPiece> = Vec::new();
    let mut start = 0;
    for (i, end) in ends.enumerate() {
        pieces.push(TextPiece { range: start..end, previous: i.checked_sub(1), next: Some(i + 1) });
        start = end;
    }
    if let Some(last) = pieces.last_mut() {
        last.next = None;
    }
    let mut queue: BinaryHeap<MergeCandidate> = BinaryHeap::new();
    for left in 0..pieces.len() {
        queue.extend(pair(&pieces, Some(left), cost));
    }
    while let Some(Reverse((_, left, right, bytes))) = queue.pop() {
        let (a, b) = (&pieces[left].range, &pieces[right].range);
        // One of them has been joined to another in the meantime.
        if a.is_empty() || b.is_empty() || a.len() + b.len() != bytes {
            continue;
        }
        let next = pieces[right].next;
        pieces[left].range.end = b.end;
        pieces[left].next = next;
        pieces[right].range = 0..0;
        if let Some(next) = next {
            pieces[next].previous = Some(left);
        }
        queue.extend(pair(&pieces, pieces[left].previous, cost));
        queue.extend(pair(&pieces, Some(left), cost));
    }
    pieces.into_iter().map(|p| p.range).filter(|r| !r.is_empty()).collect()
}

/// The pair of a piece and its right neighbour.
fn pair(
    pieces: &[TextPiece],
    left: Option<usize>,
    cost: &dyn Fn(usize, usize, usize) -> Option<u32>,
) -> Option<MergeCandidate> {
    let left = left?;
    let right = pieces[left].next?;
    let (a, b) = (&pieces[left].range, &pieces[right].range);
    Some(Reverse((cost(a.start, a.end, b.end)?, left, right, a.len() + b.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cheapest_first_and_leftmost_of_equals() {
        let text = "aaabc";
        let cost = |pairs: &'static [(&str, u32)]| {
            move |start: usize, _: usize, end: usize| {
                pairs.iter().find(|(p, _)| *p == &text[start..end]).map(|(_, c)| *c)
            }
        };
        let joined = |pairs| {
            let pieces = merge(1..=text.len(), &cost(pairs));
            pieces.into_iter().map(|r| &text[r]).collect::<Vec<_>>().join("|")
        };
        assert_eq!(joined(&[]), "a|a|a|b|c");
        assert_eq!(joined(&[("aa", 5)]), "aa|a|b|c");
        assert_eq!(joined(&[("aa", 5), ("ab", 4), ("abc", 9), ("bc", 6)]), "aa|abc");
        assert_eq!(joined(&[("aa", 5), ("aaa", 1), ("bc", 6), ("aaabc", 0)]), "aaabc");
        assert!(merge(std::iter::empty(), &|_, _, _| Some(0)).is_empty());
    }
}
