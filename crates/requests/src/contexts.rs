//! The contexts of processes: their numbers, and which are those of draft models. Between two chunks of a sequence, such a
//! context computes the tokens that another context of its process verifies with the second.

use std::collections::HashMap;

use super::call::SeqKey;
use super::sequence::SEQUENCES;
use pfi::record::Chunk;

/// Maximum contexts followed, and of draft models among them.
const CONTEXTS: usize = 256;
const DRAFTS: usize = 64;

/// A context: process, address of the llama_context.
pub type ContextKey = (u32, u64);

/// Follows contexts.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    /// In the order in which they computed first.
    all: Vec<ContextKey>,
    /// Those of draft models.
    pub drafts: Vec<ContextKey>,
    /// The last chunk of each sequence, and its number among all chunks.
    last: HashMap<SeqKey, (Chunk, u64)>,
    chunks: u64,
}

impl Contexts {
    /// Whether this context is that of a draft model, as far as is known.
    pub fn is_draft(&self, key: SeqKey) -> bool {
        self.drafts.contains(&(key.0, key.1))
    }

    /// A chunk is computed. Returns whether it is for a draft model.
    pub fn computes(&mut self, key: SeqKey, chunk: &Chunk) -> bool {
        let context = (key.0, key.1);
        if !self.all.contains(&context) {
            if self.all.len() == CONTEXTS {
                self.all.remove(0);
            }
            self.all.push(context);
        }
        self.chunks += 1;
        let number = |k: &SeqKey| self.last.get(k).map_or(0, |(_, number)| *number);
        let before = number(&key);
        // A program may give the address to another context: nobody else computed the sequence, which begins anew.
        if chunk.pos == 0 && chunk.tokens > 1 && !self.beside(key).any(|k| number(&k) > before) {
            self.drafts.retain(|k| *k != context);
        }
        if self.last.len() < SEQUENCES || self.last.contains_key(&key) {
            self.last.insert(key, (*chunk, self.chunks));
        }
        self.is_draft(key)
    }

    /// Call this for a chunk that verifies a draft, before [`Contexts::computes`]. A context that computed its tokens since
    /// the last chunk of this sequence is that of a draft model; it is returned if it was not known.
    pub fn verified(&mut self, key: SeqKey, chunk: &Chunk) -> Option<u64> {
        let until = chunk.pos.saturating_add_unsigned(chunk.tokens);
        let since = self.last.get(&key).map_or(u64::MAX, |(_, number)| *number);
        let drafted = |(c, number): &(Chunk, u64)| {
            *number > since && c.tokens == 1 && chunk.pos >= 0 && c.pos >= chunk.pos && c.pos < until
        };
        let (_, context, _) = self.beside(key).find(|k| self.last.get(k).is_some_and(drafted))?;
        if self.drafts.contains(&(key.0, context)) {
            return None;
        }
        if self.drafts.len() == DRAFTS {
            self.drafts.remove(0);
        }
        self.drafts.push((key.0, context));
        Some(context)
    }

    /// The same sequence in other contexts of the process.
    pub fn beside(&self, (pid, context, seq): SeqKey) -> impl Iterator<Item = SeqKey> {
        let others = self.all.iter().filter(move |k| k.0 == pid && k.1 != context);
        others.map(move |k| (k.0, k.1, seq))
    }

    /// The number of a context in its process, from 1, without those of draft models.
    pub fn number(&self, key: SeqKey) -> u32 {
        let own = self.all.iter().filter(|c| c.0 == key.0 && !self.drafts.contains(c));
        own.take_while(|c| c.1 != key.1).count() as u32 + 1
    }

    /// Forgets the contexts of these processes.
    pub fn forget(&mut self, which: impl Fn(u32) -> bool) {
        self.all.retain(|k| !which(k.0));
        self.drafts.retain(|k| !which(k.0));
        self.last.retain(|k, _| !which(k.0));
    }

    /// Forgets the last chunks of these sequences.
    pub fn forget_sequences(&mut self, which: impl Fn(&SeqKey) -> bool) {
        self.last.retain(|k, _| !which(k));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(pos: i64, tokens: u64, outputs: u64) -> Chunk {
        Chunk { seq: 3, pos, tokens, outputs }
    }

    #[test]
    fn a_draft_model_computes_what_its_target_verifies() {
        let mut d = Contexts::default();
        let (target, draft, other) = ((1, 2, 3), (1, 9, 3), (1, 4, 3));
        // The same prompt, and the same positions, are no sign: two models may be asked the same.
        for key in [target, draft, other, (2, 9, 3)] {
            assert!(!d.computes(key, &chunk(0, 8, 1)));
        }
        assert!(!d.computes(other, &chunk(8, 1, 1)) && !d.computes(target, &chunk(8, 1, 1)));
        assert!(!d.computes(draft, &chunk(9, 1, 1)) && !d.computes(draft, &chunk(10, 1, 1)));
        // Nor is what was computed before the target's last call.
        assert_eq!(d.verified(target, &chunk(8, 5, 5)), Some(9));
        assert_eq!(d.verified(target, &chunk(8, 5, 5)), None);
        assert!(
            d.computes(draft, &chunk(9, 1, 1))
                && !d.computes(target, &chunk(9, 5, 5))
                && !d.computes(other, &chunk(9, 1, 1))
        );
        // With another prompt it stays one; alone, it is another context at the same address.
        assert!(!d.computes(target, &chunk(0, 8, 1)) && d.computes(draft, &chunk(0, 7, 1)));
        assert!(!d.computes(draft, &chunk(0, 7, 1)));
        d.forget(|pid| pid == 1);
        assert!(d.last.len() == 1 && d.drafts.is_empty());
    }

    #[test]
    fn contexts_have_the_numbers_of_their_order_without_draft_models() {
        let mut c = Contexts::default();
        for context in [5, 9, 4] {
            c.computes((1, context, 3), &chunk(0, 8, 1));
        }
        c.computes((2, 7, 3), &chunk(0, 8, 1));
        let numbers = |c: &Contexts| [5, 9, 4].map(|context| c.number((1, context, 3)));
        assert_eq!((numbers(&c), c.number((2, 7, 3))), ([1, 2, 3], 1));
        c.drafts.push((1, 9));
        assert_eq!(numbers(&c)[2], 2);
        // They are bounded.
        let drafts = (0..1000).filter(|context| c.computes((3, *context, 3), &chunk(0, 8, 1)));
        assert_eq!(drafts.count(), 0);
        assert_eq!(c.all.len(), CONTEXTS);
    }
}
